"""The interval operator by operator: what each one reduces, and which shards it leaves.

This is the operator table of the claim, derived from the plan. The audit's contract, the ledger and
the printed table are all made from it.
"""

import dataclasses
import math

from fcjax.model import Interval
from fcjax.ownership import Plan

REDUCE_SCATTER, ALL_REDUCE, ALL_GATHER = "reduce-scatter", "all-reduce", "all-gather"


@dataclasses.dataclass(frozen=True)
class Collective:
    """One transfer that the plan allows, as every node takes part in it.

    Attributes:
      kind: its HLO opcode.
      operand: padded shape that each node puts in.
      axis: the operand's axis that is dealt out over the nodes; None for a sum that all receive.
      weight: path of the parameter that a scatter's operand was contracted with, or None.
      contracted: the split dimension over which that contraction summed, or None.
      nodes: N.
    """

    kind: str
    operand: tuple[int, ...]
    axis: int | None
    weight: str | None
    contracted: str | None
    nodes: int

    @property
    def result(self) -> tuple[int, ...]:
        """Padded shape that each node receives."""
        if self.kind == ALL_GATHER:
            return (self.nodes, *self.operand)
        return tuple(n // self.nodes if i == self.axis else n for i, n in enumerate(self.operand))

    @property
    def sent(self) -> float:
        """Elements that a node must send to the others at least (a ring's share)."""
        share = (self.nodes - 1) / self.nodes
        size = math.prod(self.operand)
        return size * share * {REDUCE_SCATTER: 1, ALL_REDUCE: 2, ALL_GATHER: self.nodes}[self.kind]


@dataclasses.dataclass(frozen=True)
class Boundary:
    """A point between two operators of the interval, where ownership is recorded.

    Attributes:
      scope: the operator before it, as the program's named scope: "layer_0/qkv".
      collectives: what that operator transfers, in order.
      state: the state tensors (`ownership.STATE`) that the nodes own behind it.
    """

    scope: str
    collectives: tuple[Collective, ...]
    state: tuple[str, ...]


def boundaries(plan: Plan, interval: Interval, batch: int, tokens: int) -> list[Boundary]:
    """The boundaries of the interval in order, from the entry to the successor's q, k, v."""
    cfg, B, T = plan.cfg, batch, tokens
    D, K, F = (plan.split(d).padded for d in ("D", "K", "F"))

    def statistic():
        return Collective(ALL_REDUCE, (B, T, 1), None, None, None, plan.nodes)

    def scatter(operand, axis, weight, contracted):
        return Collective(REDUCE_SCATTER, operand, axis, weight, contracted, plan.nodes)

    def qkv(i):
        collectives = (statistic(), scatter((B, T, K, cfg.C, cfg.H), 2, f"layers.{i}.qkv", "D"))
        return Boundary(f"layer_{i}/qkv", collectives, ("q", "k", "v"))

    rows = [Boundary("entry", (), ("residual",))]
    for i in interval.layers:
        out = scatter((B, T, D), 2, f"layers.{i}.out", "K")
        gate_up = scatter((B, T, 2, F), 3, f"layers.{i}.gate_up", "D")
        down = scatter((B, T, D), 2, f"layers.{i}.down", "F")
        rows += [
            qkv(i),
            Boundary(f"layer_{i}/attention", (), ("attention", "cache_k", "cache_v")),
            Boundary(f"layer_{i}/out", (out,), ("residual",)),
            Boundary(f"layer_{i}/gate_up", (statistic(), gate_up), ("gate", "up", "activation")),
            Boundary(f"layer_{i}/down", (down,), ("residual",)),
        ]
    return [*rows, qkv(interval.successor)]


def compatibility_all_gather(plan: Plan, batch: int, tokens: int) -> Collective:
    """The transfer behind the interval, outside the claim: residual, q, k and v in one buffer."""
    cfg = plan.cfg
    width = plan.split("D").block + plan.split("K").block * cfg.C * cfg.H
    return Collective(ALL_GATHER, (batch, tokens, width), None, None, None, plan.nodes)


def owned(plan: Plan, state: str, node: int) -> str:
    """What a node owns of a state tensor, in words: "D 0..767"; "K none" for an empty run."""
    split = plan.state_split(state)
    run = split.owned(node)
    if len(run) < 2:
        return f"{split.dim} {run.start}" if run else f"{split.dim} none"
    return f"{split.dim} {run.start}..{run.stop - 1}"


def table(plan: Plan, interval: Interval, batch: int, tokens: int) -> str:
    """The interval as text: operator, transfers, and the coordinates of each node behind it."""
    rows = [("boundary", "collectives", "state", *(f"node {q}" for q in range(plan.nodes)))]
    for b in boundaries(plan, interval, batch, tokens):
        moves = ", ".join(f"{c.kind} {list(c.operand)}" for c in b.collectives) or "-"
        state = ", ".join(b.state)
        rows.append(
            (b.scope, moves, state, *(owned(plan, b.state[0], q) for q in range(plan.nodes)))
        )
    gather = compatibility_all_gather(plan, batch, tokens)
    rows.append(
        ("(outside the claim)", f"{gather.kind} {list(gather.operand)}", "residual, q, k, v",
         *("complete" for _ in range(plan.nodes)))
    )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows
    )
