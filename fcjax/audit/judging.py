"""Judges one array that crosses between nodes: which kind of crossing is it, and may it be?"""

from fcjax.audit.crossing import (
    Again,
    Contraction,
    Crossing,
    Exchanged,
    Gathered,
    Local,
    StatisticFound,
)
from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import Part
from fcjax.audit.domain.roles import Signature
from fcjax.audit.domain.values import Kind, Value, is_split
from fcjax.audit.hlo.graph import Instruction, Shape
from fcjax.audit.rules import contraction
from fcjax.audit.rules.exchange import Exchanges


def judge(
    instruction, operand: Value, shape: Shape, signature: Signature, exchanges: Exchanges
) -> Crossing:
    """Judge one operand of a collective and the result that belongs to it.

    Args:
      exchanges: those of the contract; the one that this is is taken out of what is left.
    """
    opcode = instruction.opcode.removesuffix("-start")
    facts = instruction, opcode, operand, shape
    groups = instruction.groups or (tuple(range(signature.devices)),)
    if all(len(group) == 1 for group in groups):
        return Local(*facts)
    if operand.complete:
        return Again(*facts)
    fault = _group_fault(instruction, groups, signature.all_groups) or _operand_fault(operand)
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


def _group_fault(i: Instruction, groups, expected) -> tuple[str, str] | None:
    if i["channel_id"] <= 0:
        return "wrong-group", "it has no channel: it runs over replicas, not over nodes"
    if set(map(frozenset, groups)) != set(map(frozenset, expected)) or len(groups) != len(expected):
        whom = "one group of all" if len(expected) == 1 else f"{len(expected)} groups of"
        return "wrong-group", f"expected {whom} {len(expected[0])} nodes, got {groups}"
    if set(groups) != set(expected):
        return "wrong-owner", f"expected the nodes in the order of the plan, got {groups}"
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
