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
from fcjax.audit.domain.roles import Signature
from fcjax.audit.domain.values import Kind, Statistic, Sum, Value, is_split, mixed, public
from fcjax.audit.hlo.graph import Instruction, Shape
from fcjax.audit.rules import contraction
from fcjax.audit.rules.exchange import Declared, Exchanges


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
        """Does it hand out the same state again, contracted with some of the same weight?"""
        a, b = (c.operand.product for c in (self, other))
        x, y = ({r for r in c.operand.reads if not isinstance(r, Statistic)}
                for c in (self, other))  # fmt: skip
        apart = any(dg.are_apart(r, s) for r in a.runs for s in b.runs)
        return a.weight == b.weight and x == y and not apart

    @property
    def result(self) -> Value:
        return _scattered(self)


class StatisticFound(Crossing):
    """A norm's sum of squares, which every node receives."""

    expected = ExpectedStatistic

    @property
    def unplanned(self) -> str:
        return "not-a-statistic" if self.statistic.power == 1 else "unplanned-collective"

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
        return Statistic(line.of) == self.statistic


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


def judge(
    instruction, operand: Value, shape: Shape, signature: Signature, exchanges: Exchanges
) -> Crossing:
    """Judge one operand of a collective and the result that belongs to it.

    Args:
      exchanges: those of the contract; the one that this is is taken out of what is left.
    """
    opcode = instruction.opcode.removesuffix("-start")
    facts, nodes = (instruction, opcode, operand, shape), signature.nodes
    groups = instruction.groups or (tuple(range(nodes)),)
    if all(len(group) == 1 for group in groups):
        return Local(*facts)
    if operand.complete:
        return Again(*facts)
    fault = _group_fault(instruction, groups, nodes) or _operand_fault(operand)
    if fault:
        return Crossing(*facts, fault)
    return _ADMITS[opcode](facts, signature, exchanges)


def _admit_gather(facts, signature: Signature, exchanges: Exchanges) -> Crossing:
    return Gathered(*facts)


def _admit_all_reduce(facts, signature: Signature, exchanges: Exchanges) -> Crossing:
    instruction, _, operand, _ = facts
    combine = contraction.combines(instruction.called[0])
    if exchanges.concerns(operand):
        exchange, fault = exchanges.take(operand, combine)
        return Crossing(*facts, fault) if fault else Exchanged(*facts, exchange=exchange)
    fault = _NOT_SUMMED if combine != "add" else _all_reduce_fault(operand, signature)
    return Crossing(*facts, fault) if fault else StatisticFound(*facts)


def _admit_reduce_scatter(facts, signature: Signature, exchanges: Exchanges) -> Crossing:
    instruction, _, operand, _ = facts
    if contraction.combines(instruction.called[0]) != "add":
        return Crossing(*facts, _NOT_SUMMED)
    if _is_dealt_statistic(instruction, operand):
        return StatisticFound(*facts)
    axis, fault = _scatter(instruction, operand, signature)
    return Crossing(*facts, fault) if fault else Contraction(*facts, scattered=axis)


def _is_dealt_statistic(i: Instruction, operand: Value) -> bool:
    """Is it a statistic, once for each owner, so that each receives the sum of all?"""
    (along,) = i["dimensions"]
    if any(tag is not None for digit in operand.dims[along] for tag in digit[1:]):
        return False
    dims = (*operand.dims[:along], (), *operand.dims[along + 1 :])
    return contraction.statistic_fault(operand.replace(dims=dims)) is None


_NOT_SUMMED = ("wrong-reduction", "the nodes' contributions are not summed")
_ADMITS = {
    "all-gather": _admit_gather,
    "all-reduce": _admit_all_reduce,
    "reduce-scatter": _admit_reduce_scatter,
}


def _group_fault(i: Instruction, groups, nodes: int) -> tuple[str, str] | None:
    everyone = tuple(range(nodes))
    if i["channel_id"] <= 0:
        return "wrong-group", "it has no channel: it runs over replicas, not over nodes"
    if sorted(d for group in groups for d in group) != list(everyone) or len(groups) != 1:
        return "wrong-group", f"expected one group of all {nodes} nodes, got {groups}"
    if groups[0] != everyone:
        return "wrong-owner", f"expected the nodes in the order of the plan, got {groups[0]}"
    return None


def _operand_fault(operand: Value) -> tuple[str, str] | None:
    if operand.kind is Kind.WEIGHT:
        return "weight-on-wire", f"weight {operand.origin} leaves its node"
    if operand.kind is Kind.PUBLIC:
        return "unplanned-collective", f"it moves {operand.origin}, which no operator needs"
    return None


def _all_reduce_fault(operand: Value, signature: Signature) -> tuple[str, str] | None:
    """Why it is not a declared statistic; None if it is."""
    if operand.product is not None and operand.product.weight is not None:
        complete = "each node receives the complete sum, not a shard"
        fault = contraction.contraction_fault(operand, signature.by_name)
        return fault or ("all-reduce-of-state", complete)
    fault = contraction.statistic_fault(operand)
    if fault and operand.product is None and operand.origin:
        fault = "not-a-weight", f"state reaches it through {operand.origin}"
    elif fault and operand.product is None and not _summed(operand):
        fault = "hidden-gather", "state reaches it without a contraction with a declared weight"
    return fault


def _summed(operand: Value) -> bool:
    """Has the state's split axis been summed away, as for a statistic?"""
    return all(d.state != dg.OPAQUE and not is_split(d.state) for d in operand.digits)


def _scatter(i: Instruction, operand: Value, signature: Signature):
    """The weight's axis that is scattered, and what is wrong: (axis, None) or (None, fault)."""
    fault = contraction.contraction_fault(operand, signature.by_name)
    if fault:
        return None, fault
    (along,) = i["dimensions"]
    leading = operand.dims[along][0] if operand.dims[along] else None
    axis = leading.weight.axis if leading and isinstance(leading.weight, Part) else None
    if axis is None:
        return None, ("wrong-axis", f"it is not scattered over an axis of {operand.product.weight}")
    if leading.weight.stride * leading.size != axis.size or leading.size % signature.nodes:
        return None, ("wrong-owner", f"{axis} is not dealt out in equal runs, in order")
    return axis, None


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
