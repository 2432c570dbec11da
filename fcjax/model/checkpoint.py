"""Model folders on disk, and loading exactly the blocks that each node owns.

Two kinds of folder hold a model: a Hugging Face folder (config.json and safetensors files), and an
Orbax checkpoint converted from one by `weights.convert` (config.json and params/). Both have `cfg`,
and `digest`, the hash of all their files. Both answer `load(targets)`, where a target says shape,
type and sharding of a parameter; a target that is larger than the parameter is padded with zeros at
the end of each axis, as the ownership plan asks.
"""

import pathlib

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  before safetensors reads a bf16 tensor, or numpy does not know the type
import numpy as np
from orbax.checkpoint import v1 as ocp
from safetensors import SafetensorError, safe_open

from fcjax import files, manifest
from fcjax.model import convert
from fcjax.model.config import ModelConfig
from fcjax.model.params import param_shapes

PARAMS = "params"  # the Orbax checkpoint inside a converted folder
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class HuggingFaceFolder:
    """config.json, and model.safetensors or the files that an index names."""

    def __init__(self, folder, digest: str):
        """Check names, shapes and types of all tensors against config.json; reads no weights."""
        self.folder = pathlib.Path(folder)
        self.digest = digest
        self.cfg = ModelConfig.from_hf(self.folder)
        self.files = self._check()

    def _check(self) -> dict[str, pathlib.Path]:
        """The file of each tensor.

        Raises:
          ValueError: naming every missing, extra, misplaced or misshapen tensor.
        """
        faults, files, shapes = [], {}, {}
        listed = self._listed()
        for file in sorted(set(listed.values())) or [SINGLE]:
            try:
                with safe_open(self.folder / file, framework="numpy") as f:
                    for name in f.keys():
                        if listed and listed.get(name) != file:
                            faults.append(f"{name}: expected in {listed.get(name)}, got in {file}")
                        part = f.get_slice(name)
                        files[name] = self.folder / file
                        shapes[name] = tuple(part.get_shape()), part.get_dtype()
            except (OSError, SafetensorError) as e:
                raise ValueError(
                    f"weights: expected a safetensors file, got {e} ({self.folder / file})"
                ) from None
        wanted = convert.hf_shapes(self.cfg)
        missing = (wanted.keys() | listed.keys()) - shapes.keys()
        faults += [f"{n}: expected a tensor, got nothing" for n in sorted(missing)]
        faults += [f"{n}: expected no such tensor" for n in sorted(shapes.keys() - wanted)]
        for name in sorted(shapes.keys() & wanted):
            shape, kind = shapes[name]
            if shape != wanted[name]:
                faults.append(f"{name}: expected shape {wanted[name]}, got {shape}")
            if _TYPES.get(kind) != self.cfg.dtype:
                faults.append(f"{name}: expected {self.cfg.dtype}, got {_TYPES.get(kind, kind)}")
        _raise(faults, self.folder)
        return files

    def _listed(self) -> dict[str, str]:
        """The index's file for each tensor; empty where the folder has one unindexed file."""
        path = self.folder / INDEX
        if not path.exists():
            return {}
        try:
            listed = files.read_json(path)["weight_map"]
            listed = {str(name): str(file) for name, file in listed.items()}
        except (ValueError, KeyError, AttributeError, TypeError) as e:
            raise ValueError(
                f"weights: expected an index with weight_map, got {e!r} ({path})"
            ) from None
        if (self.folder / SINGLE).exists() and SINGLE not in listed.values():
            # Two models in one folder; transformers would take the other one.
            raise ValueError(f"weights: expected {SINGLE} or {INDEX}, got both ({self.folder})")
        return listed

    def read(self, path: str, index: tuple[slice, ...]) -> np.ndarray:
        """One block of a Flax parameter, in the type of the file."""

        def read(name, slices):
            # Opened for each block: a closed file gives the pages that were read back at once.
            with safe_open(self.files[name], framework="numpy") as f:
                return f.get_slice(name)[slices]

        return convert.read_block(self.cfg, path, index, read)

    def load(self, targets: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """The parameters as the targets ask; every node's block is read by itself.

        Raises:
          ValueError: a number is infinite or not a number; all such parameters are named.
        """
        shapes = param_shapes(self.cfg)

        def block(path, target, index):
            padded = [range(*s.indices(size)) for s, size in zip(index, target.shape, strict=True)]
            true = [
                slice(min(r.start, n), min(r.stop, n))
                for r, n in zip(padded, shapes[path], strict=True)
            ]
            out = np.zeros([len(r) for r in padded], target.dtype)
            if all(s.stop > s.start for s in true):
                out[tuple(slice(s.stop - s.start) for s in true)] = self.read(path, tuple(true))
            return out

        return _finite(self.folder, {
            path: jax.make_array_from_callback(
                target.shape, target.sharding, lambda index, p=path, t=target: block(p, t, index)
            )
            for path, target in targets.items()
        })


class OrbaxFolder:
    """A converted folder: config.json, tokenizer files, and the parameters under params/."""

    def __init__(self, folder, digest: str):
        """Check names, shapes and types of all parameters against config.json."""
        self.folder = pathlib.Path(folder).absolute()
        self.digest = digest
        self.cfg = ModelConfig.from_hf(self.folder)
        try:
            stored = ocp.metadata(self.folder / PARAMS).metadata
        except (ValueError, OSError) as e:
            reason = str(e).splitlines()[0]
            raise ValueError(
                f"weights: expected an Orbax checkpoint, got {reason} ({self.folder / PARAMS})"
            ) from None
        wanted = param_shapes(self.cfg)
        faults = [f"{n}: expected a parameter, got nothing" for n in sorted(wanted - stored.keys())]
        faults += [f"{n}: expected no such parameter" for n in sorted(stored.keys() - wanted)]
        for path in sorted(wanted.keys() & stored.keys()):
            if stored[path].shape != wanted[path]:
                faults.append(f"{path}: expected shape {wanted[path]}, got {stored[path].shape}")
            # Orbax casts on restore without a word, so the stored type is compared here.
            if stored[path].dtype != self.cfg.dtype:
                faults.append(f"{path}: expected {self.cfg.dtype}, got {stored[path].dtype}")
        _raise(faults, self.folder)

    def load(self, targets: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """As `HuggingFaceFolder.load`; Orbax reads, pads and places each node's block."""
        context = ocp.Context()
        context.array.loading.enable_padding_and_truncation = True
        context.pytree.loading.partial_load = True
        with context:
            return _finite(self.folder, ocp.load(self.folder / PARAMS, targets))


def open_folder(folder) -> HuggingFaceFolder | OrbaxFolder:
    """The model in a folder.

    Raises:
      ValueError: there is no such folder or no model in it, or any check of its kind fails.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise ValueError(f"model: expected a folder, got nothing ({folder})")
    kind = OrbaxFolder if (folder / PARAMS).is_dir() else HuggingFaceFolder
    # Orbax restores a flipped byte without a word; a folder with params/ was written by fcjax.
    digest = manifest.verify(folder, required=kind is OrbaxFolder)
    return kind(folder, digest)


def save_orbax(source: HuggingFaceFolder, folder) -> None:
    """Write the parameters, in the type of the files, as an Orbax checkpoint in folder/params."""
    params = {
        path: source.read(path, tuple(slice(0, n) for n in shape))
        for path, shape in param_shapes(source.cfg).items()
    }
    ocp.save(pathlib.Path(folder).absolute() / PARAMS, _finite(source.folder, params))


@jax.jit
def _all_finite(x):
    return jnp.all(jnp.isfinite(x))


def _finite(folder, params):
    bad = [path for path, x in params.items() if not _all_finite(x)]
    _raise([f"{path}: expected finite numbers, got inf or nan" for path in bad], folder)
    return params


def _raise(faults: list[str], folder) -> None:
    if faults:
        raise ValueError(f"weights: {'; '.join(faults)} ({folder})")
