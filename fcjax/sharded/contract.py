"""The contract of an interval, derived from the operator table and never written by hand."""

import dataclasses
import functools
import math

import jax.numpy as jnp

from fcjax.audit.contract import (
    Contract,
    Expected,
    ExpectedContraction,
    ExpectedExchange,
    ExpectedGather,
    ExpectedStatistic,
)
from fcjax.audit.domain.roles import (
    Complete,
    Public,
    State,
    Table,
    Tensor,
    Weight,
    signature,
    tensor,
)
from fcjax.audit.domain.values import Read, Statistic, Sum
from fcjax.audit.hlo.graph import Module, Unauditable
from fcjax.audit.rules.exchange import Declared
from fcjax.model.params import PARAMS, layer_path, leaf
from fcjax.sharded import layout, operators, programs
from fcjax.sharded.definition import Definition
from fcjax.sharded.interval import Boundary, ShardedModel, boundaries, compatibility_all_gather
from fcjax.sharded.operators import INTERVAL_CUTS
from fcjax.sharded.ownership import STATE, Plan

_ROLES = {layout.PUBLIC: Public, layout.SHARD: State, layout.COMPLETE: Complete}
_HLO = {  # names of types in HLO
    "float32": "f32", "bfloat16": "bf16", "float16": "f16",
    "int32": "s32", "uint32": "u32", "bool": "pred",
}


def interval_contract(
    model: ShardedModel, batch: int, tokens: int, length: int, dtype: str | None = None
) -> Contract:
    """The contract of `programs.interval` for B rows, T new tokens and caches of S slots.

    Args:
      dtype: of weights, state and caches, for example "bfloat16"; None for whatever is no wider
        than float32.
    """
    plan, program = model.plan, programs.interval(model, tokens)
    sizes = _Sizes(plan, {"B": batch, "T": tokens, "S": length}, _HLO[dtype] if dtype else "")
    flow = ExpectedFlow(plan, boundaries(model, batch, tokens))
    after = None
    if not model.whole:
        after = flow.expect_gather(compatibility_all_gather(plan, batch, tokens))
    end = model.interval.successor
    value = lambda name: sizes.value(name, end)  # noqa: E731
    caches = [
        tuple(sizes.state(name, layer_path(i, name)) for name in layout.CACHE)
        for i in program.layers
    ]
    # In the order in which JAX flattens the arguments and results of `program.fn`.
    roles = signature(
        plan.nodes,
        ({p: sizes.weight(p) for p in program.params}, caches, *map(value, program.arguments)),
        (*map(value, program.results), caches),
    )
    # The first results are named; the caches are other functions of the shards.
    sums = [flow.sum_of(name) for name in program.results]
    sums += [None] * (len(roles.results) - len(sums))
    definition = Definition(model, batch, tokens, length)
    return Contract(roles, tuple(flow.expected), after, tuple(sums), definition)


def sizes(module: Module, model: ShardedModel) -> tuple[int, int, int]:
    """Rows, tokens and cache slots (B, T, S) of an interval's program, by its entry parameters.

    These sizes are free: the plan has nothing to say about them.

    Raises:
      Unauditable: it is another program, by the number and rank of its parameters.
    """
    parameters = module.entry.parameters
    # A prefill of the whole model has other parameters than a decode: no head.
    for tokens in (1, 2):
        roles = interval_contract(model, 1, tokens, 1).signature.parameters
        if len(roles) == len(parameters):
            break
    else:
        raise Unauditable(
            f"{module.name}: expected {len(roles)} parameters, as the interval has, got"
            f" {len(parameters)}: another program, or other layers"
        )
    shapes = {role.name: p.shape.dims for role, p in zip(roles, parameters, strict=True)}
    cache = next(dims for name, dims in shapes.items() if name.endswith("cache_k"))
    entry = shapes.get("residual") or (*shapes.get("tokens", ()), 0)
    if len(entry) != 3 or len(cache) != 4:
        raise Unauditable(
            f"{module.name}: expected a residual [B, T, D] or tokens [B, T] and a cache"
            f" [B, K, S, H], got {shapes.get('residual', shapes.get('tokens'))} and {cache}:"
            " another program"
        )
    return entry[0], entry[1], cache[2]


class ExpectedFlow:
    """What the operators of an interval hand over, with what each of them reads.

    Follows the table row by row: what a state tensor is a function of is what the operator that
    left it has read, and starts anew after a scatter, whose result is a boundary value.

    Attributes:
      expected: the transfers in order.
    """

    def __init__(self, plan: Plan, rows: list[Boundary]):
        self.expected: list[Expected] = []
        self._plan = plan
        self._reads: dict[str, frozenset[Read]] = {}  # of each state tensor, at present
        self._sums: dict[str, Sum] = {}  # of those that are boundary values, their parts
        self._chosen: Sum | None = None
        choices = [t for b in rows for t in b.transfers if isinstance(t, operators.Choice)]
        self._last_choice = choices[-1] if choices else None
        for boundary in rows:
            self._step(boundary)

    def sum_of(self, value: str) -> Sum | None:
        """The parts of a value that is a boundary value; of the chosen token, what found it."""
        state = layout.VALUES[value].state
        if layout.VALUES[value].kind == layout.SHARD:
            return self._sums[state[0]]
        return self._chosen if value == "next_tokens" else None

    def expect_gather(self, moved: operators.Gather) -> ExpectedGather:
        """The all-gather of what the interval ends with."""
        complete = [layout.VALUES[name].state[0] for name in layout.names(layout.COMPLETE)]
        reads = frozenset(self._sums[state] for state in complete)
        return ExpectedGather(moved.name(""), *_sizes(moved), reads)

    def _step(self, boundary: Boundary) -> None:
        op, layer = boundary.operator, boundary.layer
        reads = frozenset().union(*(self._reads[state] for state in op.reads))
        for moved in boundary.transfers:
            self.expected.append(self._expect(moved, reads, op))
            if isinstance(moved, operators.NormStatistic):
                reads |= {Statistic(self._sums[op.reads[0]])}
        if op.weight:
            total = [p for p in op.params(self._plan.cfg, layer) if leaf(p) != op.norm]
            if op.adds:
                (residual,) = op.leaves
                total += self._sums[residual]
            total = tuple(sorted(total))
            reads = frozenset([total])
            self._sums |= dict.fromkeys(op.leaves, total)
        elif not op.reads:  # the entry
            reads = frozenset([op.leaves])
            self._sums |= dict.fromkeys(op.leaves, op.leaves)
        # What is kept from step to step is also a function of what it was before.
        kept = {(layer_path(layer, s),) for s in op.leaves if "S" in STATE[s]}
        self._reads |= dict.fromkeys(op.leaves, reads | kept)

    @functools.singledispatchmethod
    def _expect(self, moved: operators.Transfer, reads, op) -> Expected:
        raise TypeError(f"transfer: expected one inside an interval, got {moved}")

    @_expect.register
    def _(self, moved: operators.Scatter, reads, op):
        return ExpectedContraction(moved.weight, *_sizes(moved), reads, axis=op.owned)

    @_expect.register
    def _(self, moved: operators.NormStatistic, reads, op):
        return ExpectedStatistic("norm", *_sizes(moved), reads, of=self._sums[op.reads[0]])

    @_expect.register
    def _(self, moved: operators.Choice, reads, op):
        e, (sent, received) = moved.exchange, _sizes(moved)
        earlier = [x.exchange.found for x in self.expected if isinstance(x, ExpectedExchange)]
        last = moved is self._last_choice
        reads |= frozenset(earlier)
        declared = Declared(len(earlier), e.name, e.combine, _HLO[e.dtype], sent, reads, last)
        self._chosen = (e.name,)
        return ExpectedExchange(e.name, sent, received, reads, exchange=declared)


def _sizes(moved: operators.Transfer) -> tuple[int, int]:
    """Elements of the operand and of the result, on each node."""
    return math.prod(moved.operand), math.prod(moved.result)


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Roles of values by name, with the sizes that one node holds, padding included."""

    plan: Plan
    free: dict[str, int]  # B, T and S
    real: str  # the type of weights, state and caches; "" for any

    def value(self, name: str, end: int) -> Tensor:
        """One of `layout.VALUES`; `end` is the layer whose q, k, v end the interval."""
        value = layout.VALUES[name]
        kind, dtype = _ROLES[value.kind], self.real
        if value.dtype is not None:
            dtype = _HLO[jnp.dtype(value.dtype).name]
        if value.kind == layout.COMPLETE:  # without padding
            sizes = [self.free.get(d) or self.plan.cfg.size(d) for d in value.dims]
            called = name.replace("_", " ")
            return tensor(kind, called, value.dims, sizes, dtype=dtype)
        called = name
        if len(value.state) > 1:
            called = layer_path(end, ", ".join(value.state))
        return self._role(kind, called, value.dims, value.split, dtype)

    def state(self, name: str, called: str) -> Tensor:
        return self._role(State, called, STATE[name], self.plan.state_split(name).dim, self.real)

    def weight(self, path: str) -> Tensor:
        name = leaf(path)
        kind = Table if name == operators.EMBED.table else Weight
        return self._role(kind, path, PARAMS[name].dims, INTERVAL_CUTS[name].dim, self.real)

    def _role(self, kind: type[Tensor], name: str, dims, cut: str | None, dtype: str) -> Tensor:
        return tensor(kind, name, dims, [self._size(d, cut) for d in dims], cut, dtype)

    def _size(self, dim: str, cut: str | None) -> int:
        if dim in self.free:
            return self.free[dim]
        return self.plan.split(dim).block if dim == cut else self.plan.padded(dim)
