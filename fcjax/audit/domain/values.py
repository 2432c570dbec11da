"""What is known of a value in the program: the abstract domain of the provenance walk."""

import dataclasses
import enum
from typing import NamedTuple

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import Axis, Digit, Dims, Part
from fcjax.audit.domain.spread import Spread
from fcjax.audit.hlo.graph import Instruction, Shape

# A boundary value is a sum of named parts: the residual is ("layers.0.down", "layers.0.out",
# "residual") after one layer. Equal sums are the same value, in whatever order XLA adds them.
Sum = tuple[str, ...]


class Statistic(NamedTuple):
    """The all-reduced sum of squares of a boundary value, or with power 1 the sum of it."""

    of: Sum
    power: int = 2

    def __str__(self):
        return f"sum {'of squares ' * (self.power == 2)}of {' + '.join(self.of)}"


class Found(NamedTuple):
    """What an exchange of the choice of a token has found; every node knows it afterwards.

    Attributes:
      number: the exchange's place in the contract.
      name: what it finds.
    """

    number: int
    name: str

    def __str__(self):
        return f"{self.name} ({self.number})"


CONSTANT = "a constant"  # the origin of a public value that is a function of constants alone

Read = Sum | Statistic | Found  # what a value may be a function of


def words(read: Read) -> str:
    """How reports call it."""
    return str(read) if isinstance(read, Statistic | Found) else " + ".join(read)


class Kind(enum.Enum):
    PUBLIC = "public"  # nothing of the state, and no weight as it was declared
    WEIGHT = "weight"  # a declared weight: converted, copied or laid out, and nothing else
    STATE = "state"  # some function of the node's own shards


class Trail(NamedTuple):
    """How state came here: the last instruction, and the trail before it."""

    instruction: Instruction
    before: "Trail | None"

    def names(self) -> list[str]:
        out, at = [], self
        while at is not None:
            out.append(f"{at.instruction.opcode} %{at.instruction.name}")
            at = at.before
        return out[::-1]


class Product(NamedTuple):
    """A product with state, on its way to becoming a contraction.

    Attributes:
      weight: name of the declared weight, or None for a power of a boundary value.
      of: the boundary value that is squared, if it is a square.
      contracted: digits over which it has been summed so far.
      power: 2 for a square, 1 for a sum of the boundary value itself.
      runs: of the weight's axes those of which it has only a run, if it is a block of the weight.
      scaled: one number for each row, or a scale of the weight, has scaled it: it is another value
        than the plain product.
    """

    weight: str | None
    of: Sum | None
    contracted: tuple[Digit, ...] = ()
    power: int = 2
    runs: tuple[Axis, ...] = ()
    scaled: bool = False

    @property
    def name(self) -> str:
        """The weight, or which block of it, and whether it is scaled."""
        runs = "".join(f"[{a.name} {a.run[0]}:{a.run[0] + a.size}]" for a in self.runs)
        return self.weight + runs + " (scaled)" * self.scaled


class Reduced(NamedTuple):
    """State on its way to becoming one number for many coordinates.

    Attributes:
      combine: "add", "max" or "min".
      gone: digits over which it has been combined so far.
      of: the boundary value that is added up; None if it is anything else.
    """

    combine: str
    gone: tuple[Digit, ...]
    of: Sum | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """One array of the program.

    Attributes:
      kind: public, weight or state.
      shape: as the program has it.
      dims: what runs along each dimension; of a public value, which rows and tokens.
      origin: for a weight its name; for a public value where it comes from; for state the last
        thing that was done to it which no honest operator does, "" if there is none.
      sum: if the value is a boundary value, its parts; None otherwise.
      image: the boundary value that it was before uniform numbers scaled or shifted it.
      uniform: one number for each row, the same on all nodes: made of constants and statistics.
      number_of: of a truth value: (a value, true or false) if that is what it is where the value
        is a finite number, or no NaN.
      parts: the values that it is a concatenation of, if each of them might cross.
      along: the dimension along which they follow each other.
      reads: the boundary values and statistics that it is a function of.
      product: set while it is a product of state with a weight or with itself.
      reduced: set while nothing was done to it since coordinates of state were combined.
      runs: of a weight's axes those of which it has only a run.
      scaled: a weight that constants or other declared weights have scaled.
      rows: for a table the state that its rows are; "" for anything else.
      complete: the complete state may be inside (after an all-gather).
      trail: how state came here since the last boundary.
      spread: what all devices hold of it; only `holding` asks that.
    """

    kind: Kind
    shape: Shape
    dims: Dims
    origin: str = ""
    sum: Sum | None = None
    reads: frozenset[Read] = frozenset()
    product: Product | None = None
    reduced: Reduced | None = None
    runs: tuple[Axis, ...] = ()
    scaled: bool = False
    rows: str = ""
    complete: bool = False
    trail: Trail | None = None
    spread: Spread | None = None
    image: Sum | None = None
    uniform: bool = False
    number_of: "tuple[Value, bool] | None" = None
    parts: "tuple[Value, ...]" = ()
    along: int = 0

    @property
    def boundary(self) -> Sum | None:
        """The boundary value that it is, or whose image it is."""
        return self.image if self.sum is None else self.sum

    def replace(self, **changes) -> "Value":
        return dataclasses.replace(self, **changes)

    @property
    def digits(self) -> tuple[Digit, ...]:
        return tuple(d for digits in self.dims for d in digits)

    def plain(self) -> "Value":
        """The value without its product or reduction: a function of state like any other.

        Where only a weight varied, or coordinates were combined in runs, they have been mixed:
        unknown order.
        """
        if self.product is None and self.reduced is None:
            return self
        dims = tuple(dg.join(_plain(d, self.reduced) for d in digits) for digits in self.dims)
        return self.replace(product=None, reduced=None, dims=dims)


def _plain(digit: Digit, reduced: Reduced | None) -> Digit:
    runs = reduced and isinstance(digit.state, Part) and digit.state.axis.inner
    mixture = digit.state is None and digit.weight is not None
    return Digit(digit.size, dg.OPAQUE if runs or mixture else digit.state)


Tree = Value | tuple  # a tuple-shaped instruction has a tuple of trees


def leaves(tree: Tree) -> list[Value]:
    """All arrays of a tree, in order."""
    if isinstance(tree, Value):
        return [tree]
    return [leaf for branch in tree for leaf in leaves(branch)]


def public(shape: Shape, origin: str) -> Value:
    """An array that is a function of public values only; no state runs along its dimensions."""
    return Value(Kind.PUBLIC, shape, _dims(shape, None), origin=origin)


def mixed(instruction: Instruction, shape: Shape, operands: list[Value]) -> Value:
    """The result of an operator of which we only know that it runs on the node itself.

    Whatever is made of a table in another way than by looking up whole rows is state too.
    """
    state = [v for v in operands if v.kind is Kind.STATE]
    tables = [v for v in operands if v.rows]
    if not state and not tables:
        weights = [v.origin for v in operands if v.kind is Kind.WEIGHT]
        origins = [f"a value computed from weight {w}" for w in weights]
        origins += [v.origin for v in operands if v.kind is Kind.PUBLIC and v.origin != CONSTANT]
        of_constants = CONSTANT if operands else instruction.opcode
        return public(shape, origins[0] if origins else of_constants)
    origins = [f"a use of {v.origin} that looks up no whole rows" for v in tables]
    return Value(
        Kind.STATE,
        shape,
        _dims(shape, dg.OPAQUE),
        origin=next((o for o in (*origins, *(v.origin for v in state)) if o), ""),
        reads=frozenset().union(*(v.reads for v in state), ((v.rows,) for v in tables)),
        complete=any(v.complete for v in state),
        trail=Trail(instruction, state[0].trail if state else None),
    )


def _dims(shape: Shape, tag) -> Dims:
    return tuple(dg.join([Digit(n, tag)]) for n in shape.dims)


def is_split(tag) -> bool:
    """Does this tag run along one node's own coordinates?"""
    return isinstance(tag, Part) and tag.axis.split
