"""The interval operator by operator: what each one reduces, and which shards it leaves.

This is the operator table of the claim, derived from the plan. The audit's contract, the ledger and
the printed table are all made from it.
"""

import collections
import dataclasses
import math

from fcjax.sharded.ownership import Plan
from fcjax.sharded.programs import Model
from fcjax.sharded.sampling import Exchange

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
      exchange: what is found by it, if it belongs to the choice of the next token.
    """

    kind: str
    operand: tuple[int, ...]
    axis: int | None
    weight: str | None
    contracted: str | None
    nodes: int
    exchange: Exchange | None = None

    @property
    def result(self) -> tuple[int, ...]:
        """Padded shape that each node receives."""
        if self.kind == ALL_GATHER:
            return (self.nodes, *self.operand)
        return tuple(n // self.nodes if i == self.axis else n for i, n in enumerate(self.operand))

    @property
    def sent(self) -> float:
        """Elements that a node must send to the others at least; see `share`."""
        return share(self.kind, math.prod(self.operand), self.nodes)


def share(kind: str, size: int, nodes: int) -> float:
    """Elements that a node must send to the others at least, and receive from them: a ring's share.

    Args:
      kind: of the collective.
      size: elements of its operand on each node.
      nodes: N.
    """
    return size * (nodes - 1) / nodes * {REDUCE_SCATTER: 1, ALL_REDUCE: 2, ALL_GATHER: nodes}[kind]


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


def boundaries(model: Model, batch: int, tokens: int) -> list[Boundary]:
    """The boundaries of the interval in order, from its entry to the operator that ends it.

    Args:
      model: only its plan, interval and sampling are read.
      batch, tokens: B rows and T new tokens: one decodes, more are a prefill.
    """
    plan, interval, cfg, B, T = model.plan, model.interval, model.plan.cfg, batch, tokens
    D, K, F, V = (plan.split(d).padded for d in ("D", "K", "F", "V"))

    def statistic():
        return Collective(ALL_REDUCE, (B, T, 1), None, None, None, plan.nodes)

    def exchange(e):
        operand = (B,) if e.width == 1 else (B, e.width)
        return Collective(ALL_REDUCE, operand, None, None, None, plan.nodes, e)

    def scatter(operand, axis, weight, contracted):
        return Collective(REDUCE_SCATTER, operand, axis, weight, contracted, plan.nodes)

    def qkv(i):
        collectives = (statistic(), scatter((B, T, K, cfg.C, cfg.H), 2, f"layers.{i}.qkv", "D"))
        return Boundary(f"layer_{i}/qkv", collectives, ("q", "k", "v"))

    rows = [Boundary("embed" if model.whole else "entry", (), ("residual",))]
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
    if not model.whole:
        return [*rows, qkv(interval.successor)]
    if tokens > 1:  # prefill ends with the last layer
        return rows
    head = scatter((B, V), 1, "embed" if cfg.tied else "head", "D")
    choice = tuple(map(exchange, model.sampling.exchanges))
    return [
        *rows,
        Boundary("head", (statistic(), head), ("logits",)),
        Boundary("choose", choice, ()),
    ]


def sent(model: Model, batch: int, tokens: int) -> float:
    """The closed formula: elements that a node sends inside the interval in one pass."""
    return sum(c.sent for b in boundaries(model, batch, tokens) for c in b.collectives)


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


def table(model: Model, batch: int, tokens: int) -> str:
    """The interval as text: operator, transfers, and the coordinates of each node behind it.

    Layers after the first look like it and are left out.
    """
    plan, nodes = model.plan, range(model.plan.nodes)
    rows = [("boundary", "collectives", "state", *(f"node {q}" for q in nodes))]
    middle = [f"layer_{i}/" for i in model.interval.layers[1:]]
    for b in boundaries(model, batch, tokens):
        if middle and b.scope == middle[0] + "qkv":
            last = model.interval.layers[-1]
            rows.append((f"... to layer_{last}/down", "the same", "", *("" for _ in nodes)))
        if b.scope.startswith(tuple(middle)):
            continue
        counted = collections.Counter(f"{c.kind} {list(c.operand)}" for c in b.collectives)
        moves = ", ".join(f"{n} x {m}" if n > 1 else m for m, n in counted.items()) or "-"
        own = (owned(plan, b.state[0], q) if b.state else "the token" for q in nodes)
        rows.append((b.scope, moves, ", ".join(b.state) or "-", *own))
    if not model.whole:
        gather = compatibility_all_gather(plan, batch, tokens)
        rows.append(
            ("(outside the claim)", f"{gather.kind} {list(gather.operand)}", "residual, q, k, v",
             *("complete" for _ in nodes))
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows
    )
