"""The contract: the exact list of collectives that the ownership plan allows an interval.

It is derived from the plan and the interval and never written by hand. Every expected collective
says which weight it contracts, over which axis the sum is scattered, how many elements cross, and
which values it reads, so that the compiled program is compared with the operator table of the
layer and not only with a count.
"""

import dataclasses
import math

from fcjax.audit.domain.roles import (
    Complete,
    Public,
    Signature,
    State,
    Table,
    Tensor,
    Weight,
    signature,
    tensor,
)
from fcjax.audit.domain.values import Read, Statistic, Sum
from fcjax.audit.rules.exchange import Declared
from fcjax.model.params import LAYER_PARAMS, MODEL_PARAMS
from fcjax.sharded.operators import boundaries, compatibility_all_gather
from fcjax.sharded.ownership import INTERVAL_CUT, SPLIT_DIMS, STATE, Plan

GATHER = "compatibility all-gather"


@dataclasses.dataclass(frozen=True)
class Expected:
    """One collective of the contract.

    Attributes:
      operator: the weight that is contracted, for example "layers.0.qkv", "norm", what an exchange
        finds, or the compatibility all-gather.
      kind: "reduce-scatter", "all-reduce" (a declared statistic or exchange) or "all-gather".
      axis: name of the axis that is scattered; "" for the other kinds.
      sent: elements of the operand on each node.
      received: elements of the result on each node.
      reads: the boundary values and statistics that the operand is made of, and no others; of an
        exchange those that it may be made of.
      of: for a statistic the norm's input.
      exchange: set for an exchange.
    """

    operator: str
    kind: str
    axis: str
    sent: int
    received: int
    reads: frozenset[Read]
    of: Sum | None = None
    exchange: Declared | None = None


@dataclasses.dataclass(frozen=True)
class Contract:
    """What one program may do.

    Attributes:
      signature: roles of its parameters and results.
      inside: collectives of the interval in order; None allows every clean one (`certify`).
      after: the compatibility all-gather, if there is one.
      sums: for each result that is a boundary value, its parts; None where it is another function
        of the shards.
    """

    signature: Signature
    inside: tuple[Expected, ...] | None
    after: Expected | None
    sums: tuple[Sum | None, ...]

    @property
    def exchanges(self) -> tuple[Declared, ...]:
        return tuple(e.exchange for e in self.inside or () if e.exchange)


def interval_contract(model, batch: int, tokens: int, length: int) -> Contract:
    """The contract of `model.inside(T)` for B rows, T new tokens and caches of S slots.

    Args:
      model: a `fcjax.sharded.programs.Model`; only its plan, interval, sampling and the layout of
        `inside` are read.
    """
    plan, program = model.plan, model.inside(tokens)
    roles = _Roles(plan, {"B": batch, "T": tokens, "S": length})
    table = _Table(boundaries(model, batch, tokens))
    after = None
    if not model.whole:
        moved = compatibility_all_gather(plan, batch, tokens)
        after = Expected(
            GATHER, moved.kind, "", math.prod(moved.operand), math.prod(moved.result),
            frozenset([table.residual, table.last]),
        )  # fmt: skip
    values = {
        "residual": roles.state("residual"),
        "qkv": roles.fused_qkv(model.interval.successor),
        "logits": roles.state("logits"),
        "tokens": roles.role(Public, "tokens", "BT", None),
        "next_tokens": tensor(Public, "next_tokens", "BT", (batch, 1)),
        "pos": roles.role(Public, "pos", "B", None),
        "seed": Public("seed", ()),
        "seen": roles.role(Public, "seen", "BV", "V"),
        **roles.complete(),
    }
    caches = [roles.caches(i) for i in program.layers]
    # In the order in which JAX flattens the arguments and results of `program.fn`.
    roles_of = signature(
        plan.nodes,
        ({p: roles.weight(p) for p in program.params}, caches, *map(values.get, program.arguments)),
        (*map(values.get, program.results), caches),
    )
    # The first results are named; the caches are other functions of the shards.
    sums = [table.sums.get(name) for name in program.results]
    sums += [None] * (len(roles_of.results) - len(sums))
    return Contract(roles_of, tuple(table.expected), after, tuple(sums))


def open_contract(roles: Signature) -> Contract:
    """No list of collectives: every one that moves state as the claim allows is accepted."""
    complete = any(isinstance(r, Complete) for r in roles.results)
    after = Expected(GATHER, "all-gather", "", 0, 0, frozenset()) if complete else None
    return Contract(roles, None, after, (None,) * len(roles.results))


class _Table:
    """The transfers of the operator table, with what each of them reads.

    The projections behind a norm, and the head, read the residual and its statistic, `out` reads
    q, k, v and the caches, `down` reads gate and up, an exchange reads the logits and what earlier
    ones found. `out` and `down` are added to the residual, a bias to q, k, v.

    Attributes:
      expected: the transfers in order.
      residual: what the residual is at the end.
      last: what the last scatter left.
    """

    def __init__(self, rows):
        self.expected: list[Expected] = []
        self.residual: Sum = ("residual",)
        self.last: Sum = ()
        collectives = [c for row in rows for c in row.collectives]
        exchanges = [c for c in collectives if c.exchange]
        self._chosen = exchanges[-1] if exchanges else None
        for c in collectives:
            operator = self._exchange if c.exchange else self._scatter if c.weight else self._norm
            self.expected.append(operator(c, math.prod(c.operand), math.prod(c.result)))

    @property
    def sums(self) -> dict[str, Sum]:
        """The parts of the results that are boundary values; of the token, what found it."""
        sums = {"residual": self.residual, "qkv": self.last, "logits": self.last}
        return sums | ({"next_tokens": (self._chosen.exchange.name,)} if self._chosen else {})

    def _norm(self, c, sent: int, received: int) -> Expected:
        reads = frozenset([self.residual])
        return Expected("norm", c.kind, "", sent, received, reads, of=self.residual)

    def _exchange(self, c, sent: int, received: int) -> Expected:
        e = c.exchange
        earlier = [x.exchange.found for x in self.expected if x.exchange]
        declared = Declared(
            number=len(earlier),
            name=e.name,
            combine=e.combine,
            dtype=_DTYPES[e.dtype],
            size=sent,
            reads=frozenset([self.last, *earlier]),
            last=c is self._chosen,
        )
        return Expected(e.name, c.kind, "", sent, received, declared.reads, exchange=declared)

    def _scatter(self, c, sent: int, received: int) -> Expected:
        layer, _, leaf = c.weight.rpartition(".")
        reads: set[Read] = {self.last}
        if leaf == "out":
            reads |= {(f"{layer}.cache_k",), (f"{layer}.cache_v",)}
        elif leaf != "down":
            reads = {self.residual, Statistic(self.residual)}
        (axis,) = (d for d in _DIMS[leaf] if d in SPLIT_DIMS and d != c.contracted)
        self.last = (c.weight, f"{layer}.qkv_bias") if leaf == "qkv" else (c.weight,)
        if leaf in ("out", "down"):
            self.residual = tuple(sorted((*self.residual, c.weight)))
        return Expected(c.weight, c.kind, axis, sent, received, frozenset(reads))


@dataclasses.dataclass(frozen=True)
class _Roles:
    """Roles of values by name, with the sizes that one node holds, padding included."""

    plan: Plan
    free: dict[str, int]  # B, T and S

    def role(self, kind: type[Tensor], name: str, dims, cut: str | None) -> Tensor:
        return tensor(kind, name, dims, [self._size(d, cut) for d in dims], cut)

    def state(self, name: str, prefix: str = "") -> Tensor:
        return self.role(State, prefix + name, STATE[name], self.plan.state_split(name).dim)

    def fused_qkv(self, layer: int) -> Tensor:
        return self.role(State, f"layers.{layer}.q, k, v", _FUSED, "K")

    def caches(self, layer: int) -> tuple[Tensor, ...]:
        return tuple(self.state(name, f"layers.{layer}.") for name in ("cache_k", "cache_v"))

    def weight(self, path: str) -> Tensor:
        leaf = path.rpartition(".")[2]
        kind = Table if leaf == "embed" else Weight
        return self.role(kind, path, _DIMS[leaf], INTERVAL_CUT[leaf])

    def complete(self) -> dict[str, Tensor]:
        """The results of the compatibility all-gather: whole, and without padding."""
        return {
            f"complete_{name}": tensor(Complete, f"complete {name}", dims, self._true_sizes(dims))
            for name, dims in (("residual", STATE["residual"]), ("qkv", _FUSED))
        }

    def _true_sizes(self, dims) -> list[int]:
        return list(map(self._true_size, dims))

    def _true_size(self, dim: str) -> int:
        return self.free[dim] if dim in self.free else self.plan.cfg.size(dim)

    def _size(self, dim: str, cut: str | None) -> int:
        if dim not in SPLIT_DIMS:
            return self._true_size(dim)
        split = self.plan.split(dim)
        return split.block if dim == cut else split.padded


_DIMS = LAYER_PARAMS | MODEL_PARAMS
_DTYPES = {"float32": "f32", "int32": "s32"}
_FUSED = ("B", "T", "K", "C", "H")  # q, k and v of a KV group side by side
