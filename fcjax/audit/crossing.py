"""Judges one array that crosses between nodes: what is it made of, what does a node then hold?"""

import dataclasses
import math
from typing import ClassVar

from fcjax.audit.contract import (
    Expected,
    ExpectedContraction,
    ExpectedExchange,
    ExpectedGather,
    ExpectedStatistic,
)
from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import Axis, Digit, Part
from fcjax.audit.domain.values import Kind, Statistic, Sum, Value, mixed, public
from fcjax.audit.hlo.graph import Instruction, Shape
from fcjax.audit.rules import contraction
from fcjax.audit.rules.exchange import Declared


@dataclasses.dataclass(frozen=True)
class Crossing:
    """One array of one collective, and what that is; this class is a violation.

    Attributes:
      instruction: the collective (the wrapped one, if it is asynchronous).
      kind: its opcode without "-start".
      operand: what each node sends.
      shape: of the result.
      fault: (reason code, words) if this may not cross.
    """

    instruction: Instruction
    kind: str
    operand: Value
    shape: Shape
    fault: tuple[str, str] | None = None

    expected: ClassVar[type[Expected] | None] = None  # the line of a contract that it can be
    crosses: ClassVar[bool] = True  # whether it moves anything between nodes
    spreads: ClassVar[bool] = False  # whether every node then has state of all nodes
    unplanned: ClassVar[str] = "unplanned-collective"  # the reason where a contract has none

    @property
    def name(self) -> str:
        """How reports call it."""
        return "(violation)"

    @property
    def result(self) -> Value:
        """What is known of the value that each node receives.

        After a violation the audit goes on as if the worst had happened.
        """
        out = mixed(self.instruction, self.shape, [self.operand])
        return out.replace(complete=True) if out.kind is Kind.STATE else out

    @property
    def axis(self) -> Axis | None:
        """The weight's axis that is scattered."""
        return None

    @property
    def sent(self) -> int:
        """Elements that each node puts in."""
        return math.prod(self.operand.shape.dims)

    @property
    def received(self) -> int:
        """Elements that each node receives."""
        return math.prod(self.shape.dims)

    def serves(self, line: Expected) -> bool:
        """Whether it is the collective of this line of a contract."""
        return self.expected is not None and isinstance(line, self.expected) and self._is(line)

    def _is(self, line: Expected) -> bool:
        return line.operator == self.name

    def holds(self, nodes: int) -> str:
        """Which node ends up holding what, in words."""
        return f"every node receives {self.received} elements made of state of all {nodes} nodes"


class Local(Crossing):
    """The groups are single nodes: nothing crosses."""

    crosses = False

    @property
    def result(self) -> Value:
        return mixed(self.instruction, self.shape, [self.operand])


class Again(Crossing):
    """State that crossed before, in a gather or a violation, crosses again."""

    spreads = True


@dataclasses.dataclass(frozen=True)
class Contraction(Crossing):
    """State contracted with a weight is scattered over one of the weight's axes."""

    expected = ExpectedContraction
    scattered: Axis | None = None

    @property
    def name(self) -> str:
        return self.operand.product.name

    @property
    def axis(self) -> Axis | None:
        return self.scattered

    def repeats(self, other: "Contraction") -> bool:
        """Does it hand out again what some of the same weight makes, of the same state?

        Dealt out in another way, of any state: what is almost the same state would do as well.
        """
        a, b = (c.operand.product for c in (self, other))
        x, y = ({r for r in c.operand.reads if not isinstance(r, Statistic)}
                for c in (self, other))
        if a.weight != b.weight or any(dg.are_apart(r, s) for r in a.runs for s in b.runs):
            return False
        return x == y or (a.runs, self.scattered) != (b.runs, other.scattered)

    @property
    def result(self) -> Value:
        return _scattered(self)


class StatisticFound(Crossing):
    """A norm's sum of squares, which every node receives."""

    expected = ExpectedStatistic

    @property
    def unplanned(self) -> str:
        return "unplanned-collective" if self._is_plain() else "not-a-statistic"

    def _is_plain(self) -> bool:
        """Is it the sum of squares of the value itself, neither scaled nor shifted?"""
        product = contraction.power_sum(self.operand)
        return product.power == 2 and not product.scaled

    @property
    def statistic(self) -> Statistic:
        product = contraction.power_sum(self.operand)
        return Statistic(product.of, product.power)

    @property
    def name(self) -> str:
        return str(self.statistic)

    @property
    def result(self) -> Value:
        reads = frozenset([self.statistic])
        known = {"reads": reads, "sum": None, "trail": None, "uniform": True}
        out = self.operand.plain().replace(shape=self.shape, **known)
        if self.kind != "reduce-scatter":
            return out
        (along,) = self.instruction["dimensions"]
        one = dg.join([Digit(self.shape.dims[along])])
        return out.replace(dims=(*out.dims[:along], one, *out.dims[along + 1 :]))

    def _is(self, line: Expected) -> bool:
        return line.of == self.statistic.of and self._is_plain()


@dataclasses.dataclass(frozen=True)
class Exchanged(Crossing):
    """A number that each node found in its own logits, combined over all nodes."""

    expected = ExpectedExchange
    exchange: Declared | None = None

    @property
    def name(self) -> str:
        return self.exchange.name

    @property
    def result(self) -> Value:
        if self.exchange.last:
            return public(self.shape, self.name).replace(sum=(self.name,))
        new = {"reads": frozenset([self.exchange.found]), "sum": None, "trail": None, "origin": ""}
        return self.operand.plain().replace(shape=self.shape, **new)

    def _is(self, line: Expected) -> bool:
        return line.exchange == self.exchange


class Gathered(Crossing):
    """State as it is, which every node receives from all: only after an interval."""

    expected = ExpectedGather
    spreads = True


def _scattered(crossing: Contraction) -> Value:
    """The shard that a node receives: the weight's axes become axes of state."""
    operand, axis = crossing.operand, crossing.axis
    (along,) = crossing.instruction["dimensions"]
    block = crossing.shape.dims[along] * axis.size // crossing.operand.shape.dims[along]
    shard = Axis(axis.name, block, split=True)

    def state(digit: Digit) -> Digit:
        tag = digit.state if digit.weight is None else digit.weight
        return Digit(digit.size, Part(shard, tag.stride) if tag.axis == axis else tag)

    dims = []
    for n, digits in enumerate(operand.dims):
        if n == along:
            ratio = crossing.operand.shape.dims[along] // crossing.shape.dims[along]
            first = digits[0]
            digits = (dg.split(first, first.size // ratio)[1], *digits[1:])
        dims.append(dg.join(map(state, digits)))
    total: Sum = (operand.product.name,)
    out = mixed(crossing.instruction, crossing.shape, [operand])
    return out.replace(dims=tuple(dims), sum=total, reads=frozenset([total]), trail=None, origin="")
