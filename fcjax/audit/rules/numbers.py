"""What each node knows of itself: integers that are made of its number and of constants.

Programs that a compiler has cut for the nodes look up offsets and choices in tables, by the number
of the node. With them one can say which block a node takes, and which of two arrays.
"""

import operator

from fcjax.audit.domain.spread import Spread
from fcjax.audit.hlo.graph import Instruction

_CARRIED = {"bitcast", "broadcast", "convert", "copy", "reshape"}
_OPERATORS = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "and": operator.and_,
    "or": operator.or_, "xor": operator.xor, "maximum": max, "minimum": min,
}
_DIRECTIONS = {
    "EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "LE": operator.le,
    "GT": operator.gt, "GE": operator.ge,
}
_INTEGERS = {"pred", "s32", "u32"}
_LARGE = 1 << 31  # beyond it, types wrap around


def numbers(i: Instruction, operands: list[Spread], devices: int) -> tuple[int, ...]:
    """For each device the integer that all elements of the result are; () where not known."""
    if i.shape.dtype not in _INTEGERS:
        return ()
    found: tuple[int, ...] = ()
    known = [o.numbers for o in operands]
    if i.opcode == "partition-id":
        return tuple(range(devices))
    if i.opcode == "constant" and len(_literal(i)) == 1:
        return _literal(i) * devices
    if i.opcode == "dynamic-slice" and operands[0].table and known[1:] and known[1]:
        if i.shape.dims == (1,):
            last = len(operands[0].table) - 1
            return tuple(operands[0].table[min(max(n, 0), last)] for n in known[1])
    if not known or not all(known):
        return ()
    if i.opcode in _CARRIED:
        found = known[0]
        if i.shape.dtype == "pred":
            found = tuple(int(n != 0) for n in found)
    elif i.opcode in _OPERATORS:
        found = tuple(map(_OPERATORS[i.opcode], *known))
    elif i.opcode == "compare":
        found = tuple(map(int, map(_DIRECTIONS[i["comparison_direction"]], *known)))
    elif i.opcode == "not" and i.shape.dtype == "pred":
        found = tuple(1 - n for n in known[0])
    return found if all(0 <= n < _LARGE for n in found) else ()


def table(i: Instruction, operands: list[Spread]) -> tuple[int, ...]:
    """The integers of a constant of one dimension."""
    if i.opcode == "constant" and len(i.shape.dims) == 1 and i.shape.dtype in _INTEGERS:
        return _literal(i)
    return operands[0].table if i.opcode in ("bitcast", "copy") else ()


def _literal(i: Instruction) -> tuple[int, ...]:
    if i["literal"] is None or i.shape.dtype not in _INTEGERS:
        return ()
    return tuple(i["literal"][f"{i.shape.dtype}s"])
