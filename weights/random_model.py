"""Random but reproducible weights of any Qwen2.5 size, with the scales of trained ones."""

import concurrent.futures
import hashlib
import os
import pathlib
from collections.abc import Iterator

import ml_dtypes
import numpy as np
from tokenizers import Tokenizer

from fcjax.files import read_json
from fcjax.model import convert
from fcjax.model.config import ModelConfig
from weights import hf_dir

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def make(cfg: ModelConfig, out, seed: int, tokenizer, shard_bytes: int = hf_dir.SHARD_BYTES) -> str:
    """Write the folder `out`; returns the digest of its manifest.

    Raises:
      ValueError: `out` exists, or `tokenizer` is no folder with a tokenizer of at most V ids.
    """
    hf_dir.refuse_existing(out)
    files, ids = read_tokenizer(tokenizer, cfg)
    return hf_dir.write(
        out, cfg, tensors(cfg, seed), files=files, token_ids=ids, shard_bytes=shard_bytes
    )


def tensors(cfg: ModelConfig, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """(Hugging Face name, bf16 array) of every tensor; the next few are made in threads.

    Each tensor has its own generator, keyed by seed and name: its numbers depend neither on the
    order nor on the model's depth.
    """
    pending = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, shape in convert.hf_shapes(cfg).items():
            pending.append((name, pool.submit(tensor, cfg, seed, name, shape)))
            if len(pending) > os.cpu_count():
                yield pending[0][0], pending.pop(0)[1].result()
        while pending:
            yield pending[0][0], pending.pop(0)[1].result()


def tensor(cfg: ModelConfig, seed: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """One random tensor in bf16."""
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    rng = np.random.Generator(np.random.SFC64(list(key)))
    mean, deviation = distribution(cfg, name)
    out = np.empty(shape, ml_dtypes.bfloat16)
    rows = out.reshape(shape[0], -1)
    # In blocks of rows that stay in the processor's cache, for speed and for little memory.
    step = max(1, 2**18 // rows.shape[1])
    for start in range(0, len(rows), step):
        block = rng.standard_normal(rows[start : start + step].shape, dtype=np.float32)
        block *= np.float32(deviation)
        block += np.float32(mean)
        rows[start : start + step] = block
    return out


def distribution(cfg: ModelConfig, name: str) -> tuple[float, float]:
    """Mean and standard deviation of a tensor, by its Hugging Face name.

    A projection of n inputs keeps the scale of its input at deviation 1/sqrt(n). Two branches a
    layer add to the residual; at 1/sqrt(2 L) each, all of them add as much as one branch would.
    """
    residual = (2 * cfg.L) ** -0.5
    kinds = {
        "embed_tokens.weight": (0.0, 3 * cfg.D**-0.5),  # as the head: logits of deviation 3
        "lm_head.weight": (0.0, 3 * cfg.D**-0.5),
        "norm.weight": (1.0, 0.1),
        "_proj.bias": (0.0, 0.5),
        "o_proj.weight": (0.0, residual * (cfg.K * cfg.G * cfg.H) ** -0.5),
        "down_proj.weight": (0.0, 2 * residual * cfg.F**-0.5),  # silu(gate) * up is about 1/2
        "_proj.weight": (0.0, cfg.D**-0.5),
    }
    return next(value for suffix, value in kinds.items() if name.endswith(suffix))


def read_tokenizer(folder, cfg: ModelConfig) -> tuple[dict[str, bytes], dict]:
    """The tokenizer files of a model folder, and the token ids of its generation_config.json."""
    copied = hf_dir.read_files(folder, TOKENIZER_FILES)
    path = pathlib.Path(folder) / "tokenizer.json"
    try:
        count = Tokenizer.from_file(str(path)).get_vocab_size()
        generation = read_json(path.with_name("generation_config.json"))
        ids = {key: generation[key] for key in TOKEN_IDS if key in generation}
    except Exception as e:  # tokenizers raises nothing more special than Exception
        raise ValueError(
            f"tokenizer: expected a model folder with one, got {e} ({folder})"
        ) from None
    if count > cfg.V:
        raise ValueError(f"tokenizer: expected at most {cfg.V} ids, got {count} ({folder})")
    return copied, ids
