"""The contract: the exact list of collectives that the ownership plan allows an interval.

It is derived from the plan and the interval and never written by hand. Every expected collective
says which weight it contracts, over which axis the sum is scattered, how many elements cross, and
which values it reads, so that the compiled program is compared with the operator table of the
layer and not only with a count.
"""

import dataclasses
import math

from fcjax.audit.roles import (
    Complete,
    Public,
    Signature,
    State,
    Tensor,
    Weight,
    signature,
    tensor,
)
from fcjax.audit.values import Statistic, Sum
from fcjax.boundaries import boundaries, compatibility_all_gather
from fcjax.ownership import INTERVAL_CUT, SPLIT_DIMS, STATE, Plan
from fcjax.reference import LAYER_PARAMS

GATHER = "compatibility all-gather"


@dataclasses.dataclass(frozen=True)
class Expected:
    """One collective of the contract.

    Attributes:
      operator: the weight that is contracted, for example "layers.0.qkv", "norm", or the
        compatibility all-gather.
      kind: "reduce-scatter", "all-reduce" (a declared statistic) or "all-gather".
      axis: name of the axis that is scattered; "" for the other kinds.
      sent: elements of the operand on each node.
      received: elements of the result on each node.
      reads: the boundary values and statistics that the operand is made of, and no others.
      of: for a statistic the norm's input.
    """

    operator: str
    kind: str
    axis: str
    sent: int
    received: int
    reads: frozenset[Sum | Statistic]
    of: Sum | None = None


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


def interval_contract(model, batch: int, tokens: int, length: int) -> Contract:
    """The contract of `model.inside` for B rows, T new tokens and caches of S slots.

    Args:
      model: a `fcjax.model.Model`; only its plan, interval and the layout of `inside` are read.
    """
    plan, interval = model.plan, model.interval
    roles = _Roles(plan, {"B": batch, "T": tokens, "S": length})
    inside, residual, qkv = _expected(boundaries(plan, interval, batch, tokens))
    moved = compatibility_all_gather(plan, batch, tokens)
    after = Expected(
        GATHER, moved.kind, "", math.prod(moved.operand), math.prod(moved.result),
        frozenset([residual, qkv]),
    )  # fmt: skip
    entry, end = roles.state("residual"), roles.fused_qkv(interval.successor)
    caches = [roles.caches(i) for i in model.inside.layers]
    # In the order in which JAX flattens the arguments and results of `model.inside.fn`.
    weights = {path: roles.weight(path) for path in model.inside.params}
    roles_of = signature(
        plan.nodes,
        (weights, caches, entry, Public("pos", ())),
        (entry, end, *roles.complete(), caches),
    )
    sums = {entry.name: residual, end.name: qkv}
    results = roles_of.results
    found = tuple(sums.get(r.name) if isinstance(r, State) else None for r in results)
    return Contract(roles_of, inside, after, found)


def open_contract(roles: Signature) -> Contract:
    """No list of collectives: every one that moves state as the claim allows is accepted."""
    complete = any(isinstance(r, Complete) for r in roles.results)
    after = Expected(GATHER, "all-gather", "", 0, 0, frozenset()) if complete else None
    return Contract(roles, None, after, (None,) * len(roles.results))


def _expected(rows) -> tuple[tuple[Expected, ...], Sum, Sum]:
    """The transfers of the operator table, and the values that leave the interval.

    What each operator reads: the projections behind a norm read the residual and its statistic,
    `out` reads q, k, v and the caches, `down` reads gate and up. `out` and `down` are added to the
    residual, a bias to q, k, v.
    """
    expected: list[Expected] = []
    residual: Sum = ("residual",)
    last: Sum = ()
    for c in (c for row in rows for c in row.collectives):
        sent, received = math.prod(c.operand), math.prod(c.result)
        if c.weight is None:
            expected.append(
                Expected("norm", c.kind, "", sent, received, frozenset([residual]), of=residual)
            )
            continue
        layer, _, leaf = c.weight.rpartition(".")
        reads: set[Sum | Statistic] = {last}
        if leaf in ("qkv", "gate_up"):
            reads = {residual, Statistic(residual)}
        elif leaf == "out":
            reads |= {(f"{layer}.cache_k",), (f"{layer}.cache_v",)}
        dims = LAYER_PARAMS[leaf]
        (axis,) = (d for d in dims if d in SPLIT_DIMS and d != c.contracted)
        expected.append(Expected(c.weight, c.kind, axis, sent, received, frozenset(reads)))
        last = (c.weight, f"{layer}.qkv_bias") if leaf == "qkv" else (c.weight,)
        if leaf in ("out", "down"):
            residual = tuple(sorted((*residual, c.weight)))
    return tuple(expected), residual, last


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
        return self.role(Weight, path, LAYER_PARAMS[leaf], INTERVAL_CUT[leaf])

    def complete(self) -> tuple[Tensor, ...]:
        """The results of the compatibility all-gather: whole, and without padding."""
        return tuple(
            tensor(Complete, f"complete {name}", dims, map(self._true_size, dims))
            for name, dims in (("residual", STATE["residual"]), ("qkv", _FUSED))
        )

    def _true_size(self, dim: str) -> int:
        return self.free[dim] if dim in self.free else self.plan.cfg.size(dim)

    def _size(self, dim: str, cut: str | None) -> int:
        if dim not in SPLIT_DIMS:
            return self._true_size(dim)
        split = self.plan.split(dim)
        return split.block if dim == cut else split.padded


_FUSED = ("B", "T", "K", "C", "H")  # q, k and v of a KV group side by side
