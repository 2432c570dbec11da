"""Train the packaged tiny model on a text and write it as a model folder with its record."""

import dataclasses
import json
import math
import pathlib
import time

import ml_dtypes
import numpy as np

from fcjax.model.config import ModelConfig
from weights import export, hf_dir, tiny_tokenizer, training

TINY = ModelConfig(
    L=6, D=192, K=2, G=3, H=32, F=512, V=2048, tied=True,
    eps=1e-6, rope_theta=1e4, max_len=512,
)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What the result depends on besides the text; recorded in training.json.

    Attributes:
      length: tokens of a training window.
      peak: highest learning rate.
      noise: share of the input tokens that are replaced by random ones.
      eval_every: steps between two looks at the held-out text.
    """

    steps: int
    batch: int
    seed: int
    length: int = 256
    peak: float = 4e-3
    weight_decay: float = 0.1
    noise: float = 0.05
    eval_every: int = 50
    prompt: str = "ROMEO:\n"
    sample_tokens: int = 250
    temperature: float = 0.8


def build(text_path, out, settings: Schedule, cfg: ModelConfig = TINY) -> float:
    """Train on the text and write the folder `out`; returns the held-out loss of what it holds.

    Raises:
      ValueError: `out` exists, or the text is missing, is not UTF-8, or is too short.
    """
    hf_dir.refuse_existing(out)
    train_text, val_text = split(read_text(text_path))
    tokenizer = tiny_tokenizer.train(train_text, cfg.V)
    train_ids, val_ids = (
        np.asarray(tokenizer.encode(part).ids, np.int32) for part in (train_text, val_text)
    )
    print(f"{len(train_ids)} tokens to train on, {len(val_ids)} held out", flush=True)
    best, curve = _train(cfg, train_ids, val_ids, settings)

    # Everything that is reported is measured on the rounded numbers that the file will hold.
    stored = {path: value.astype(ml_dtypes.bfloat16) for path, value in best.items()}
    rounded = {path: value.astype(np.float32) for path, value in stored.items()}
    loss = training.evaluator(cfg, val_ids, settings.length)(rounded)
    sample_ids = training.sample(
        cfg, rounded, tokenizer.encode(settings.prompt).ids, count=settings.sample_tokens,
        temperature=settings.temperature, seed=settings.seed,
    )
    record = {
        "settings": dataclasses.asdict(settings),
        "train_tokens": len(train_ids),
        "val_tokens": len(val_ids),
        "val_characters": len(val_text),
        "val_loss_bf16": loss,
        "curve": curve,
    }
    sample = settings.prompt + tokenizer.decode(sample_ids)
    print(f"held-out loss of the bf16 weights: {loss:.4f} nats a token\n\n{sample}")
    eos = tokenizer.token_to_id(tiny_tokenizer.EOS)
    hf_dir.write(
        out, cfg, export.hf_tensors(cfg, stored),
        token_ids={"eos_token_id": eos, "pad_token_id": eos},
        files=tiny_tokenizer.files(tokenizer, cfg.max_len) | {
            "training.json": json.dumps(record, indent=1) + "\n",
            "README.md": readme(record, sample, pathlib.Path(text_path).name),
        },
    )
    return loss


def read_text(path) -> str:
    """The text of a UTF-8 file."""
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ValueError(f"text: expected a readable UTF-8 file, got {e} ({path})") from None


def split(text: str) -> tuple[str, str]:
    """The first nine tenths of a text, to train on, and the last tenth, held out."""
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def _train(cfg: ModelConfig, train_ids, val_ids, settings: Schedule) -> tuple[dict, list[dict]]:
    """The parameters with the lowest held-out loss, and the losses on the way."""
    if len(train_ids) <= settings.length:
        raise ValueError(f"text: expected over {settings.length} tokens, got {len(train_ids)}")
    names = ("steps", "batch", "length", "peak", "weight_decay", "noise", "eval_every", "seed")
    best, lowest, curve, start = None, math.inf, [], time.monotonic()
    for step, train_loss, val_loss, params in training.train(
        cfg, training.init_params(cfg, settings.seed), train_ids, val_ids,
        **{name: getattr(settings, name) for name in names},
    ):
        print(
            f"step {step:5d}  train {train_loss:.4f}  held out {val_loss:.4f}"
            f"  {time.monotonic() - start:.0f} s",
            flush=True,
        )
        curve.append({"step": step, "train_loss": train_loss, "val_loss": val_loss})
        if val_loss < lowest:
            best, lowest = params, val_loss
    if best is None:
        raise ValueError(f"training: expected a finite held-out loss, got {curve[-1]['val_loss']}")
    return best, curve


def readme(record: dict, sample: str, text_name: str) -> str:
    """README.md of the folder."""
    settings, loss = record["settings"], record["val_loss_bf16"]
    per_character = loss * record["val_tokens"] / record["val_characters"]
    best = min(record["curve"], key=lambda row: row["val_loss"])
    return f"""# A tiny Qwen2.5-architecture model

Trained from scratch by `weights/train_tiny.py` on `{text_name}` (public domain); no weights or
tokenizer of another model went into it. It is for tests and demonstrations.

    python -m weights.train_tiny --text={text_name} --out=DIR \\
        --steps={settings["steps"]} --batch={settings["batch"]} --seed={settings["seed"]}

Loss on the held-out last tenth of the text, with the bf16 weights of this folder:
{loss:.4f} nats a token, {per_character:.4f} a character (step {best["step"]} of
{settings["steps"]}, the lowest seen; `training.json` has the curve). The text has no
end-of-text mark, so the model never ends its answer by itself.

{settings["sample_tokens"]} tokens after {settings["prompt"]!r} at temperature
{settings["temperature"]}, seed {settings["seed"]}, not selected:

```
{sample}
```
"""
