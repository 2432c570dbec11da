"""The compiled programs of a model, whose interval is audited before anything may run it."""

import jax

from fcjax import audit
from fcjax.model.config import ModelConfig
from fcjax.sharded import programs
from fcjax.sharded.contract import interval_contract
from fcjax.sharded.interval import ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.programs import Program


def check_sizes(cfg: ModelConfig, length: int, chunk: int) -> None:
    """Raise ValueError for numbers of tokens that no program can be compiled for.

    Args:
      cfg: the model's sizes.
      length: tokens that a row may have in the caches.
      chunk: tokens of a prefill pass.
    """
    if not 0 < length <= cfg.max_len:
        raise ValueError(
            f"cache: expected 1 to {cfg.max_len} tokens, the positions that the model was made"
            f" for, got {length}"
        )
    if chunk < 2:
        raise ValueError(f"chunk: expected at least 2 tokens a prefill pass, got {chunk}")


class Programs:
    """The compiled programs of a model, whose interval is audited before anything may run it.

    Attributes:
      layout: the model on its nodes.
      batch: rows B.
      length: tokens that a row may have in the caches.
      chunk: tokens T of a prefill pass.
      slots: of the caches: `length`, and room for a last chunk that is mostly padding.
      audits: for each number of tokens T that was compiled, the verdict on the interval's program.
    """

    def __init__(self, layout: Layout, batch: int, length: int, chunk: int = 32):
        """Sizes as above; see `check_sizes` for what is refused."""
        check_sizes(layout.plan.cfg, length, chunk)
        self.layout, self.batch, self.length, self.chunk = layout, batch, length, chunk
        self.slots = length + chunk
        self.audits: dict[int, audit.Verdict] = {}
        self._compiled = {}

    @property
    def model(self) -> ShardedModel:
        return self.layout.model

    def prepare(self, tokens: int) -> audit.Verdict:
        """Compile for T tokens and audit the interval; needs no weights. Returns the verdict."""
        if tokens not in self.audits:
            sizes = (self.batch, tokens, self.slots)
            compiled = [
                (p, programs.compile(p, self.layout, *sizes))
                for p in programs.of_pass(self.model, tokens)
            ]
            (inside,) = (executable for p, executable in compiled if p.name == "interval")
            contract = interval_contract(self.model, *sizes, self.layout.dtype.name)
            self.audits[tokens] = audit.audit_compiled(inside, contract)
            self._compiled[tokens] = compiled
        return self.audits[tokens]

    def passed(self) -> bool:
        """Whether every program that was compiled passed its audit."""
        return all(verdict.ok for verdict in self.audits.values())

    def get(self, tokens: int) -> list[tuple[Program, jax.stages.Compiled]]:
        """The programs of a pass of T tokens with their executables, in order.

        Raises:
          audit.Failed: the interval's program did not pass its audit, so none is handed out.
        """
        verdict = self.prepare(tokens)
        if not verdict.ok:
            raise audit.Failed(verdict)
        return self._compiled[tokens]
