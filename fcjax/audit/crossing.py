"""Judges one array that crosses between nodes: what is it made of, what does a node then hold?"""

import dataclasses
import math

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import Axis, Digit, Part
from fcjax.audit.domain.roles import Signature, Tensor
from fcjax.audit.domain.values import Kind, Statistic, Sum, Value, is_split, mixed, public
from fcjax.audit.hlo.graph import Instruction, Shape
from fcjax.audit.rules import contraction
from fcjax.audit.rules.exchange import Declared, Exchanges

CONTRACTION, STATISTIC, GATHER = "contraction", "statistic", "gather"
EXCHANGE = "exchange"
NOTHING = "nothing"  # the groups are single nodes
BEHIND = "behind"  # state that crossed before, in a gather or a violation, crosses again


@dataclasses.dataclass(frozen=True)
class Crossing:
    """One array of one collective.

    Attributes:
      instruction: the collective (the wrapped one, if it is asynchronous).
      kind: its opcode without "-start".
      operand: what each node sends.
      shape: of the result.
      what: one of the words above; "" if there is a fault.
      axis: the weight's axis that is scattered.
      exchange: the declared exchange that it is.
      fault: (reason code, words) if this may not cross.
    """

    instruction: Instruction
    kind: str
    operand: Value
    shape: Shape
    what: str = ""
    axis: Axis | None = None
    exchange: Declared | None = None
    fault: tuple[str, str] | None = None

    @property
    def result(self) -> Value:
        """What is known of the value that each node receives."""
        if self.what == NOTHING:
            return mixed(self.instruction, self.shape, [self.operand])
        if self.what == CONTRACTION:
            return _scattered(self)
        if self.what == STATISTIC:
            of = Statistic(self.operand.product.of)
            value = self.operand.plain()
            return value.replace(shape=self.shape, reads=frozenset([of]), sum=None, trail=None)
        if self.what == EXCHANGE and self.exchange.last:
            return public(self.shape, self.exchange.name).replace(sum=(self.exchange.name,))
        if self.what == EXCHANGE:
            reads = frozenset([self.exchange.found])
            value = self.operand.plain()
            return value.replace(shape=self.shape, reads=reads, sum=None, trail=None, origin="")
        # After a violation the audit goes on as if the worst had happened.
        out = mixed(self.instruction, self.shape, [self.operand])
        return out.replace(complete=True) if out.kind is Kind.STATE else out


def judge(
    instruction, operand: Value, shape: Shape, signature: Signature, exchanges: Exchanges
) -> Crossing:
    """Judge one operand of a collective and the result that belongs to it.

    Args:
      exchanges: those of the contract; the one that this is is taken out of what is left.
    """
    kind = instruction.opcode.removesuffix("-start")
    crossing = Crossing(instruction, kind, operand, shape)
    nodes = signature.nodes
    groups = instruction.groups or (tuple(range(nodes)),)
    if all(len(group) == 1 for group in groups):
        return dataclasses.replace(crossing, what=NOTHING)
    if operand.complete:
        return dataclasses.replace(crossing, what=BEHIND)
    fault = _group_fault(instruction, groups, nodes) or _operand_fault(operand)
    what, axis, found = "", None, None
    if not fault and kind == "all-gather":
        what = GATHER
    elif not fault:
        combine = contraction.combines(instruction.called[0])
        if kind == "all-reduce" and exchanges.concerns(operand):
            found, fault = exchanges.take(operand, combine)
            what = EXCHANGE if found else ""
        elif combine != "add":
            fault = "wrong-reduction", "the nodes' contributions are not summed"
        elif kind == "all-reduce":
            what, fault = _all_reduce(operand, signature)
        else:
            what, axis, fault = _reduce_scatter(instruction, operand, signature)
    return dataclasses.replace(crossing, what=what, axis=axis, exchange=found, fault=fault)


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


def _all_reduce(operand: Value, signature: Signature):
    if operand.product is not None and operand.product.weight is not None:
        fault = contraction.contraction_fault(operand, _weights(signature))
        return "", fault or (
            "all-reduce-of-state",
            "each node receives the complete sum, not a shard",
        )
    fault = contraction.statistic_fault(operand)
    if fault and operand.product is None and operand.origin:
        fault = "not-a-weight", f"state reaches it through {operand.origin}"
    elif fault and operand.product is None and not _summed(operand):
        fault = "hidden-gather", "state reaches it without a contraction with a declared weight"
    return "" if fault else STATISTIC, fault


def _summed(operand: Value) -> bool:
    """Has the state's split axis been summed away, as for a statistic?"""
    return all(d.state != dg.OPAQUE and not is_split(d.state) for d in operand.digits)


def _reduce_scatter(i: Instruction, operand: Value, signature: Signature):
    weights = _weights(signature)
    fault = contraction.contraction_fault(operand, weights)
    if fault:
        return "", None, fault
    (along,) = i["dimensions"]
    leading = operand.dims[along][0] if operand.dims[along] else None
    axis = leading.weight.axis if leading and isinstance(leading.weight, Part) else None
    weight = operand.product.weight
    if axis is None:
        return "", None, ("wrong-axis", f"it is not scattered over an axis of {weight}")
    if leading.weight.stride * leading.size != axis.size or leading.size % signature.nodes:
        return "", None, ("wrong-owner", f"{axis} is not dealt out in equal runs, in order")
    return CONTRACTION, axis, None


def _scattered(crossing: Crossing) -> Value:
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
    total: Sum = (operand.product.weight,)
    out = mixed(crossing.instruction, crossing.shape, [operand])
    return out.replace(dims=tuple(dims), sum=total, reads=frozenset([total]), trail=None, origin="")


def holds(crossing: Crossing, nodes: int) -> str:
    """Which node ends up holding what, in words."""
    n = math.prod(crossing.shape.dims)
    return f"every node receives {n} elements made of state of all {nodes} nodes"


def _weights(signature: Signature) -> dict[str, Tensor]:
    return {p.name: p for p in signature.parameters}
