"""Who holds what: the walk of `provenance` through any program, on all its devices at once.

Where `provenance` asks whether a program keeps to the one discipline that a plan allows, this walk
only says what happens, so that it also follows what no plan contains: several mesh axes, groups of
some nodes, loops and branches, exchanges of every kind, weights that are gathered. All inputs are
walked as arrays with coordinates; `spread` holds what is true of them over all devices.
"""

import dataclasses
import functools

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain import spread as sp
from fcjax.audit.domain.digits import Digit, Dims
from fcjax.audit.domain.roles import Signature
from fcjax.audit.domain.spread import Cut, Spread
from fcjax.audit.domain.values import Kind, Tree, Value, leaves, public
from fcjax.audit.hlo.graph import Instruction, Shape, Unauditable
from fcjax.audit.provenance import Walker
from fcjax.audit.rules import exchange, handing, loops, numbers, spreading, traffic

# Structure, and computations that are walked themselves: a value is then what it was.
_CARRIED = {
    "add-dependency", "after-all", "all-gather-done", "all-reduce-done", "async-done",
    "async-start", "async-update", "call", "collective-permute-done", "conditional", "copy-done",
    "copy-start", "fusion", "get-tuple-element", "opt-barrier", "tuple", "while",
}
_ROUNDS = 64  # of a loop, until what is known of its values no longer changes


@dataclasses.dataclass(frozen=True)
class Handing:
    """One array that an instruction hands from node to node, or to something that is not known.

    Attributes:
      instruction: what does it.
      operand: what each node puts in.
      result: what each node receives.
      times: how often it runs in a step; None if that is not known.
      arrays: how many like the result a node receives.
    """

    instruction: Instruction
    operand: Value
    result: Value
    times: int | None
    arrays: int


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The bits that stand for the blocks of inputs in `Spread.reach`.

    Attributes:
      bits: of each input, by name: all its blocks.
      states, tables, weights, publics: bits of all inputs of a kind.
    """

    bits: dict[str, int]
    states: int
    tables: int
    weights: int
    publics: int

    def is_state(self, reach: int) -> bool:
        """Is something that is made of these inputs state? Rows that are looked up are."""
        return bool(reach & self.states) or bool(reach & self.tables and reach & self.publics)

    def names(self, reach: int, of: int) -> list[str]:
        """Inputs of a kind that it is made of."""
        return [name for name, bits in self.bits.items() if bits & reach & of]


class Holding(Walker):
    """Walks a program.

    Args:
      devices: how many run the program.
      inputs: what its parameters are.
      dealt: how inputs are dealt out over the devices.

    Attributes:
      handings: what is handed over, in the order of the schedule.
      others: cuts in which nodes have blocks that were another's.
    """

    def __init__(self, devices: int, inputs: Inputs, dealt: set[Cut]):
        super().__init__(Signature(devices, (), ()), exchange.Exchanges())
        self.devices, self.inputs, self.dealt = devices, inputs, dealt
        self.handings: list[Handing] = []
        self.times: int | None = 1
        self.others: set[Cut] = set()
        self.tokens: dict[tuple, int] = {}

    def step(self, i: Instruction, operands: list[Tree]) -> Tree:
        if i.opcode == "while":
            return self.loop(i, operands[0])
        if i.opcode == "conditional":
            return self.branches(i, operands)
        out = spreading.rule(i, operands) or super().step(i, operands)
        if i.opcode in _CARRIED | traffic.COLLECTIVES:
            return out
        spread, gone = self.made(i, leaves(tuple(operands))), spreading.gone(i, operands)
        out = _map(lambda v: self.known(v, spread, gone), out)
        states = [v for v in leaves(tuple(operands)) if self.is_state(v)]
        if len(states) > 1 and isinstance(out, Value):
            out = spreading.copied(i, states, out)
        if i.opcode in traffic.TRANSFERS or _is_foreign(i):
            self.handings += [
                Handing(i, operand, operand, self.times, 1) for operand in leaves(tuple(operands))
            ]
        return out

    def made(self, i: Instruction, operands: list[Value]) -> Spread:
        """Of what an instruction makes on each device."""
        spreads = [v.spread for v in operands]
        spread = sp.union(spreads, self.devices)
        keys = list(zip(*(s.same for s in spreads), strict=True)) or [()] * self.devices
        found = numbers.numbers(i, spreads, self.devices)
        if found:
            keys = list(zip(found, strict=True))
        spread = spread.replace(
            same=tuple(self.token(spreading.content(i), key) for key in keys),
            numbers=found,
            table=numbers.table(i, spreads),
        )
        if i.opcode == "select" and spreads[0].numbers:
            spread = spreading.chosen(spread, *spreads)
        states = [v.spread for v in operands if self.is_state(v)]
        if i.opcode == "slice":
            spread = spread.replace(sliced=spreading.sliced(i, operands[0]))
        elif i.opcode in ("dot", "custom-call") and len(states) == 1:
            # One block of state meets the same block of a weight: they are summed over it.
            others = [v.spread for v in operands if v.spread not in states]
            summed = states[0].single.intersection(*(s.single for s in others))
            pending = spread.pending | {cut for cut, rows in summed if not rows}
            spread = spread.replace(pending=pending, single=spread.single - summed)
        return spread.replace(statistic=bool(states) and all(s.statistic for s in states))

    def token(self, *content) -> int:
        """A number that stands for this content."""
        return self.tokens.setdefault(content, len(self.tokens))

    def is_state(self, value: Value) -> bool:
        return any(map(self.inputs.is_state, value.spread.reach))

    def known(self, value: Value, spread: Spread, gone: tuple[Digit, ...] | None) -> Value:
        """The value with its spread, once these digits were summed away (None: nothing was)."""
        value = value.replace(product=None, reduced=None, trail=None, sum=None, reads=frozenset())
        value = value.replace(spread=spread, dims=sp.retag(value.dims))
        if not self.is_state(value):
            return value
        summed = gone is not None
        dims = sp.retag(value.dims, functools.partial(sp.settled, summed=summed))
        new = {cut for cut, _ in sp.cuts_of(gone or ())}
        if new:
            rows = all(sp.is_row(d) for digits in dims for d in digits)
            spread = spread.replace(pending=spread.pending | new, statistic=rows)
        return value.replace(dims=dims, spread=spread)

    def loop(self, i: Instruction, state: Tree) -> Tree:
        body, condition = loops.parts(i)
        outside, known = self.times, len(self.handings)
        trips = i.config().get("known_trip_count", {}).get("n")
        self.times = outside * int(trips) if outside is not None and trips else None
        for _ in range(_ROUNDS):
            del self.handings[known:]  # what is known in the last round holds in all
            going = self.run(condition, [state])
            joined = self.either([state, self.run(body, [state])], going, id(i))
            if joined == state:
                self.times = outside
                return state
            state = joined
        raise Unauditable(f"{i.name}: expected a loop whose values can be followed")

    def branches(self, i: Instruction, operands: list[Tree]) -> Tree:
        chosen, *arguments = operands
        found = [self.run(b, [a]) for b, a in zip(i.called, arguments, strict=True)]
        return self.either(found, chosen, id(i))

    def either(self, trees: list[Tree], chosen: Tree, *place) -> Tree:
        """What is known of a value that is one of several, as another value says.

        Args:
          place: where the program chooses.
        """
        if not isinstance(trees[0], Value):
            branches = enumerate(zip(*trees, strict=True))
            return tuple(self.either(list(t), chosen, *place, n) for n, t in branches)
        spread = sp.union([v.spread for v in (*trees, *leaves(chosen))], self.devices)
        states = [v for v in trees if self.is_state(v)]
        statistic = bool(states) and all(v.spread.statistic for v in states)
        kind = Kind.STATE if any(v.kind is Kind.STATE for v in trees) else Kind.PUBLIC
        dims = functools.reduce(dg.unify, (v.dims for v in trees))
        same = tuple(self.token("either", *place, first) for first in spread.same)
        spread = spread.replace(statistic=statistic, same=same, numbers=(), table=())
        return Value(kind, trees[0].shape, dims, spread=spread)

    def collective(self, i: Instruction, operands: list[Tree]) -> Tree:
        given = leaves(tuple(operands))
        shapes = traffic.result(i).leaves()
        if len(given) != len(shapes):
            raise Unauditable(f"{i.name}: expected {len(given)} results, got {len(shapes)}")
        if i.opcode == "all-to-all" and len(given) > 1:  # the n-th is for the n-th of the group
            one = self.either(given, (), id(i))
            sliced = frozenset().union(*(v.spread.sliced for v in given))
            one = one.replace(spread=one.spread.replace(sliced=sliced))
            received = self.handed(i, one, shapes[0], len(given))
            return tuple(received.replace(shape=shape) for shape in shapes)
        out = [self.handed(i, *facts) for facts in zip(given, shapes, strict=True)]
        return tuple(out) if traffic.result(i).dtype == "tuple" else out[0]

    def handed(self, i: Instruction, operand: Value, shape: Shape, arrays=1) -> Value:
        """One array of a collective, or several of a kind, as each node receives them."""
        sources = handing.sources(i, self.devices)
        place = [s.index(d) if d in s else 0 for d, s in enumerate(sources)]
        before = operand.spread

        def merged(cut: Cut) -> Cut:
            return tuple(frozenset().union(*(cut[s] for s in source)) for source in sources)

        keys = [tuple(before.same[s] for s in source) for source in sources]
        if i.opcode.startswith(("all-reduce", "reduce-scatter")):
            keys = [tuple(sorted(key, key=str)) for key in keys]
        token = functools.partial(self.token, id(i))
        if i.opcode.startswith("collective-permute"):  # one array, as it was on another node
            token = lambda key: key[0] if key else self.token("zeros")  # noqa: E731
        deals = i.opcode in ("reduce-scatter", "all-to-all", "ragged-all-to-all")
        if deals and not handing.is_copied(i, operand):
            keys = list(zip(keys, place, strict=True))
        pending = {merged(cut) for cut in before.pending}
        dims, single = handing.received(i, operand, shape, merged, place)
        if operand.kind is not Kind.PUBLIC and not self.is_state(operand):
            single = {(cut, False) for cut, _ in single}  # a weight has no rows
        single |= {(merged(cut), rows) for cut, rows in before.single}
        bits = [functools.reduce(int.__or__, (before.reach[s] for s in g), 0) for g in sources]
        after = before.replace(
            reach=tuple(bits),
            same=tuple(map(token, keys)),
            numbers=(),
            table=(),
            pending=frozenset(cut for cut in pending if not sp.is_whole(cut)),
            single=frozenset(c for c in single if not sp.is_whole(c[0])),
            sliced=frozenset(),
        )
        result = operand.replace(shape=shape, dims=dims, spread=after)
        if self.is_state(result) and any(len(s) > 1 or s != (d,) for d, s in enumerate(sources)):
            whole = before.whole or holds_all(result)
            result = result.replace(spread=after.replace(since=0, whole=whole))
        if i.opcode.startswith("collective-permute"):
            moved = {c for c, _ in cuts(result)} - {c for c, _ in cuts(operand)}
            self.others |= moved - self.dealt
        self.handings.append(Handing(i, operand, result, self.times, arrays))
        return result


def entry_value(shape: Shape, dims: Dims, spread: Spread, is_public: bool) -> Value:
    """An input, with what runs along its dimensions."""
    if is_public:
        return public(shape, "an input").replace(dims=dims, spread=spread)
    return Value(Kind.STATE, shape, dims, spread=spread)


def cuts(value: Value) -> list[tuple[Cut, bool]]:
    """How it is dealt out over the nodes, and whether that deals out rows."""
    return list(dict.fromkeys([*sp.cuts_of(value.digits), *sorted(value.spread.single, key=str)]))


def holds_all(value: Value) -> bool:
    """Has each node all coordinates of state, in all rows or in rows of its own?"""
    spread = value.spread
    partial = spread.pending or spread.statistic or not is_followed(value)
    return not partial and all(rows for _, rows in cuts(value))


def is_followed(value: Value) -> bool:
    """Do the known cuts account for all differences between the nodes' arrays?"""
    same, known = value.spread.same, [c for c, _ in cuts(value)] + list(value.spread.pending)
    first = sp.first_equal([tuple(c[d] for c in known) for d in range(len(same))])
    return all(same[d] == same[first[d]] for d in range(len(same)))


def _is_foreign(i: Instruction) -> bool:
    return i.opcode == "custom-call" and i["custom_call_target"] not in traffic.BUILT_IN


def _map(change, tree: Tree) -> Tree:
    return change(tree) if isinstance(tree, Value) else tuple(_map(change, t) for t in tree)
