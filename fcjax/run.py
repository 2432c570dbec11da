"""One run: decode beside the reference, compare every step, and record it."""

import dataclasses
import statistics

import jax
import numpy as np

from fcjax import parity
from fcjax.decode import Decoder, decode
from fcjax.evidence import RunFolder


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
      tokens: the ids that were decoded, [B, steps + 1].
      steps: decode steps, the prefill not counted.
      worst: largest parity figure over prefill and steps, of residual, q, k, v and logits.
      bound: what each of them had to stay below.
      copies_agree: whether behind every all-gather all complete copies equalled the shards.
      median_seconds: of a step's three programs; the first step is left out.
    """

    tokens: np.ndarray
    steps: int
    worst: dict[str, float]
    bound: float
    copies_agree: bool
    median_seconds: float

    @property
    def passed(self) -> bool:
        """Parity and copies; the audit was passed before the first step."""
        return self.copies_agree and all(error <= self.bound for error in self.worst.values())

    def to_json(self) -> dict:
        """Plain data, for the evidence."""
        return dataclasses.asdict(self) | {"tokens": self.tokens.tolist(), "passed": self.passed}

    def text(self) -> str:
        """The result as lines for a person."""
        figures = "  ".join(f"{name} {error:.1e}" for name, error in self.worst.items())
        return (
            f"parity: {figures}\n"
            f"        worst |out - ref| / |ref| of {self.steps} steps and the prefill, against the"
            f" unsharded f32 reference; bound {self.bound:.0e}:"
            f" {'passed' if self.passed else 'FAILED'}"
        )


def run(
    decoder: Decoder,
    oracle: parity.Oracle,
    folder: RunFolder,
    prompt_BT,
    steps,
    choose,
    eos,
    progress,
) -> Result:
    """Decode, compare and record.

    Args:
      decoder: with empty caches.
      oracle: the unsharded reference, with an empty cache.
      folder: where each step is recorded.
      prompt_BT: int array [B, T].
      steps: at most so many decode steps.
      choose: the rule for the next token.
      eos: ids that end a row.
      progress: called with the iterator of steps, returns it wrapped (a progress bar).
    """
    cfg = decoder.programs.model.plan.cfg
    tokens, errors, seconds, agree = [], [], [], True
    for step in progress(decode(decoder, prompt_BT, steps, choose, eos)):
        out = step.output
        reference = oracle.step(step.tokens_in)
        shards = out.shards(cfg)
        error = parity.compare(*shards, jax.device_get(out.logits), reference)
        same = out.copies_agree(shards)
        folder.step({
            "step": step.index,
            "tokens_in": step.tokens_in.tolist(),
            "tokens_out": step.tokens_out.tolist(),
            "parity": error,
            "copies_agree": same,
            "seconds": out.seconds,
        })  # fmt: skip
        tokens.append(step.tokens_out)
        errors.append(error)
        agree &= same
        if step.index > 0:
            seconds.append(out.seconds)
    return Result(
        tokens=np.concatenate(tokens, axis=1),
        steps=len(tokens) - 1,
        worst={name: max(e[name] for e in errors) for name in errors[0]},
        bound=parity.BOUND[jax.numpy.dtype(decoder.programs.model.dtype).name],
        copies_agree=agree,
        median_seconds=statistics.median(seconds) if seconds else float("nan"),
    )
