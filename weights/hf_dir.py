"""Write one Hugging Face model folder, whole or not at all.

The folder holds config.json, generation_config.json, model.safetensors (or shards with an index),
the tokenizer's files and `manifest.json`. Tensors arrive one by one and at most one shard of them
is held, so a model larger than memory can be written.
"""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from safetensors.numpy import save_file

from fcjax import manifest
from fcjax.model import convert
from fcjax.model.config import ModelConfig

SHARD_BYTES = 2 * 10**9
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def refuse_existing(target) -> None:
    """Raise ValueError if there is anything at `target`; to be called before long work."""
    if os.path.lexists(target):
        raise ValueError(f"output folder: expected a new path, got an existing one ({target})")


@contextlib.contextmanager
def new_folder(target) -> Iterator[pathlib.Path]:
    """A folder that appears at `target` when the block ends well, and never otherwise.

    The block fills a sibling of the target: a rename within one file system is atomic.
    """
    target = pathlib.Path(target).absolute()
    refuse_existing(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        yield partial
        refuse_existing(target)  # a rename would replace an empty folder made in the meantime
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial)
        raise


def write(
    target,
    cfg: ModelConfig,
    tensors: Iterable[tuple[str, np.ndarray]],
    *,
    files: Mapping[str, str | bytes],
    token_ids: Mapping[str, int | list[int]],
    generation: Mapping | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> str:
    """Write a model folder at `target`, which must not exist yet.

    Args:
      cfg: the model's sizes; its `dtype` is what every tensor must have.
      tensors: (Hugging Face name, array), in any order.
      files: further files by name: the tokenizer's, a README.
      token_ids: "bos_token_id", "eos_token_id" and the like, for both config files.
      generation: further keys of generation_config.json, such as a temperature.
      shard_bytes: a shard is closed before it would grow beyond this many bytes.

    Returns:
      The digest of the folder's manifest.

    Raises:
      ValueError: the target exists, or the tensors' names, shapes or types are not exactly those
        that `cfg` asks for, or one of them is not finite.
    """
    with new_folder(target) as folder:
        _write_json(folder / "config.json", cfg.to_hf() | token_ids)
        _write_json(folder / "generation_config.json", {**token_ids, **(generation or {})})
        for name, content in files.items():
            content = content.encode() if isinstance(content, str) else content
            (folder / name).write_bytes(content)
        _write_shards(folder, _checked(cfg, tensors), shard_bytes)
        return manifest.write(folder)


def read_files(folder, names: Iterable[str]) -> dict[str, bytes]:
    """Those of the named files that `folder` has, as the `files` argument of `write`."""
    paths = {name: pathlib.Path(folder) / name for name in names}
    return {name: path.read_bytes() for name, path in paths.items() if path.is_file()}


def _write_shards(folder: pathlib.Path, tensors, shard_bytes: int) -> None:
    """Write tensors to numbered files, then name them by how many they turned out to be."""
    shards: list[list[str]] = []
    total = 0
    for shard in _cut(tensors, shard_bytes):
        path = folder / f"shard-{len(shards)}"
        save_file(shard, path, metadata={"format": "pt"})
        path.chmod(0o644)  # safetensors makes it 0600, whatever the umask
        shards.append(list(shard))
        total += sum(array.nbytes for array in shard.values())
        del shard  # else it would stay until the next one is complete
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / WEIGHTS)
        return
    weight_map = {}
    for i, names in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"shard-{i}").rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _cut(tensors, shard_bytes: int) -> Iterator[dict[str, np.ndarray]]:
    """Group tensors in order into shards of at most `shard_bytes`, or of one larger tensor."""
    shard, size = {}, 0
    for name, array in tensors:
        if shard and size + array.nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = array
        size += array.nbytes
    yield shard


def _checked(cfg: ModelConfig, tensors) -> Iterator[tuple[str, np.ndarray]]:
    """The same tensors, contiguous; raises unless they are exactly those of a `cfg` model."""
    missing = convert.hf_shapes(cfg)
    for name, array in tensors:
        if name not in missing:
            raise ValueError(f"tensors: expected each of the model's names once, got {name!r}")
        shape = missing.pop(name)
        if (array.shape, array.dtype.name) != (shape, cfg.dtype):
            raise ValueError(f"{name}: expected {cfg.dtype}{shape}, got {array.dtype}{array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: expected finite numbers, got nan or infinity")
        # safetensors 0.8.0 writes the memory of the array as it lies, whatever its strides say
        # (huggingface/safetensors#825).
        yield name, np.ascontiguousarray(array)
    if missing:
        raise ValueError(f"tensors: expected all of the model's, got none for {sorted(missing)}")


def _write_json(path: pathlib.Path, content: Mapping) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
