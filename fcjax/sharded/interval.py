"""The audited interval of a model that is cut over nodes, operator by operator.

Everything here is known without devices and weights: the audit's contract, the ledger and the
printed table are made from it.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterator

from fcjax.sharded import operators
from fcjax.sharded.operators import INTERVAL_CUTS, TENSOR_PARALLEL_CUTS, Operator, Transfer
from fcjax.sharded.ownership import Cut, Plan
from fcjax.sharded.sampling import Sampling
from fcjax.table import aligned


@dataclasses.dataclass(frozen=True)
class Interval:
    """The audited stretch: from the residual entering layer `first` to what reads it `depth` on.

    Attributes:
      first: the first layer that runs on shards.
      depth: how many whole layers run on shards. The next layer's q, k, v are the end; after the
        last layer, the final norm and the head are, and with first = 0 the embedding is inside too.
    """

    first: int
    depth: int = 1

    @property
    def layers(self) -> range:
        """The layers that run whole inside the interval."""
        return range(self.first, self.successor)

    @property
    def successor(self) -> int:
        """The layer whose real Q/K/V reads the shards of the last whole layer; L for the head."""
        return self.first + self.depth

    def check(self, layers: int) -> None:
        """Raise ValueError unless the interval and its successor lie inside a model of L layers."""
        if not 1 <= self.depth <= layers:
            raise ValueError(f"depth: expected 1 to the model's {layers} layers, got {self.depth}")
        if self.depth == layers and self.first:
            raise ValueError(
                f"layer: expected 0 where all {layers} layers run on shards, got {self.first}"
            )
        last = max(layers - 1 - self.depth, 0)
        if not 0 <= self.first <= last:
            raise ValueError(
                f"layer: expected 0 to {last}, so that {self.depth} whole layer(s) and the next"
                f" one's Q/K/V lie inside the model's {layers} layers, got {self.first}"
            )


@dataclasses.dataclass(frozen=True)
class ShardedModel:
    """A model cut over nodes.

    Attributes:
      plan: who owns what.
      interval: which layers run on shards; the others are ordinary tensor parallelism.
      sampling: how the next token is chosen.

    Raises:
      ValueError: the interval does not lie inside the model.
    """

    plan: Plan
    interval: Interval
    sampling: Sampling = Sampling()

    def __post_init__(self):
        self.interval.check(self.plan.cfg.L)

    @property
    def whole(self) -> bool:
        """Whether every layer is inside the interval; then no program is outside it."""
        return self.interval.depth == self.plan.cfg.L

    def steps(self, tokens: int) -> Iterator[tuple[Operator, int | None]]:
        """The operators of a pass of T tokens inside the interval, in order, each with its layer.

        One token decodes; more are a prefill, which ends with the last layer.
        """
        yield (operators.EMBED if self.whole else operators.ENTRY), None
        for i in self.interval.layers:
            yield from ((op, i) for op in operators.LAYER)
        if not self.whole:
            yield operators.QKV, self.interval.successor
        elif tokens == 1:
            yield operators.HEAD, None
            yield operators.CHOOSE, None

    def params(self, tokens: int) -> tuple[str, ...]:
        """Paths of the parameters that these operators read, each once."""
        read = (op.params(self.plan.cfg, layer) for op, layer in self.steps(tokens))
        return tuple(dict.fromkeys(path for paths in read for path in paths))

    @functools.cached_property
    def _read(self) -> frozenset[str]:
        return frozenset(self.params(1))

    def cuts(self, path: str) -> dict[str, Cut]:
        """The interval's cuts for what the interval reads, tensor parallelism's for the rest."""
        everywhere = (operators.EMBED.table, operators.HEAD.weight)
        inside = path in everywhere or path in self._read
        return INTERVAL_CUTS if inside else TENSOR_PARALLEL_CUTS


@dataclasses.dataclass(frozen=True)
class Boundary:
    """A point between two operators of the interval, where ownership is recorded.

    Attributes:
      operator: the one before it.
      layer: which that one belongs to, if it is in one.
      transfers: what it hands over, in order.
    """

    operator: Operator
    layer: int | None
    transfers: tuple[Transfer, ...]

    @property
    def scope(self) -> str:
        """The operator as the program's named scope: "layer_0/qkv"."""
        name = self.operator.name
        return name if self.layer is None else f"layer_{self.layer}/{name}"

    @property
    def state(self) -> tuple[str, ...]:
        """The state tensors (`ownership.STATE`) that the nodes own after it."""
        return self.operator.leaves

    def describe(self) -> dict:
        """The boundary as plain data, for the evidence."""
        moved = [t.describe() for t in self.transfers]
        return {"scope": self.scope, "collectives": moved, "state": self.state}


def boundaries(model: ShardedModel, batch: int, tokens: int) -> list[Boundary]:
    """The boundaries of the interval in order, from its entry to the operator that ends it.

    Args:
      model: the model.
      batch, tokens: B rows and T new tokens: one decodes, more are a prefill.
    """
    sizes, exchanges = {"B": batch, "T": tokens}, model.sampling.exchanges
    return [
        Boundary(op, layer, operators.transfers(op, layer, model.plan, exchanges, sizes))
        for op, layer in model.steps(tokens)
    ]


def sent(model: ShardedModel, batch: int, tokens: int) -> float:
    """The closed formula: elements that a node sends inside the interval in one pass."""
    return sum(t.sent for b in boundaries(model, batch, tokens) for t in b.transfers)


def compatibility_all_gather(plan: Plan, batch: int, tokens: int) -> operators.Gather:
    """The transfer after the interval, outside the claim: residual, q, k and v in one buffer."""
    cfg = plan.cfg
    width = plan.split("D").block + plan.split("K").block * cfg.C * cfg.H
    return operators.Gather((batch, tokens, width), plan.nodes)


def owned(plan: Plan, state: str, node: int) -> str:
    """What a node owns of a state tensor, in words: "D 0..767"; "K none" for an empty run."""
    split = plan.state_split(state)
    run = split.owned(node)
    if len(run) < 2:
        return f"{split.dim} {run.start}" if run else f"{split.dim} none"
    return f"{split.dim} {run.start}..{run.stop - 1}"


def table(model: ShardedModel, batch: int, tokens: int) -> str:
    """The interval as text: operator, transfers, and the coordinates of each node after it.

    Layers after the first look like it and are left out.
    """
    plan, nodes = model.plan, range(model.plan.nodes)
    first, *middle = model.interval.layers
    rows = [("boundary", "collectives", "state", *(f"node {q}" for q in nodes))]
    for b in boundaries(model, batch, tokens):
        if b.layer in middle:
            if (b.operator, b.layer) == (operators.LAYER[-1], middle[-1]):
                rows.append((f"... to {b.scope}", "the same", "", *("" for _ in nodes)))
            continue
        counted = collections.Counter(f"{t.kind.opcode} {list(t.operand)}" for t in b.transfers)
        moves = ", ".join(f"{n} x {m}" if n > 1 else m for m, n in counted.items()) or "-"
        own = (owned(plan, b.state[0], q) if b.state else "the token" for q in nodes)
        rows.append((b.scope, moves, ", ".join(b.state) or "-", *own))
    if not model.whole:
        gather = compatibility_all_gather(plan, batch, tokens)
        moves = f"{gather.kind.opcode} {list(gather.operand)}"
        rows.append(
            ("(outside the claim)", moves, "residual, q, k, v", *("complete" for _ in nodes))
        )
    return aligned(rows, "<")
