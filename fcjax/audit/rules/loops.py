"""Loops that count: each round is walked by itself, as if the compiler had unrolled it.

A loop over layers takes its weights by the number of the round. That number is followed from the
constant that it starts with through the body and the condition, so no note of the compiler's about
the loop is believed. A loop whose condition is not known in this way is not followed.
"""

from fcjax.audit.domain.spread import Spread
from fcjax.audit.domain.values import Kind, Value
from fcjax.audit.hlo.graph import Computation, Instruction, Unauditable
from fcjax.audit.rules import numbers

ROUNDS = 256  # the layers of a large model, and some more

_UNKNOWN = Spread((), ())


def parts(i: Instruction) -> tuple[Computation, Computation]:
    """The body and the condition of a loop: the condition's result is one truth value."""
    found = sorted(i.called, key=lambda c: c.root.shape.dtype == "pred")
    if len(found) != 2:
        raise Unauditable(f"{i.name}: expected a body and a condition, got {len(found)}")
    return found[0], found[1]


def number(value: Value) -> int | None:
    """The integer that all elements of a value are, where that is known."""
    return value.spread.numbers[0] if value.spread and value.spread.numbers else None


def numbered(i: Instruction, operands: list[Value], out: Value) -> Value:
    """The result of an operator, with the integer that it is."""
    if out.kind is not Kind.PUBLIC or i.opcode == "partition-id":
        return out
    if i.opcode == "select" and number(operands[0]) is not None:
        found = (number(operands[1 if number(operands[0]) else 2]),)
        found = () if None in found else found
    else:
        found = numbers.numbers(i, [v.spread or _UNKNOWN for v in operands], 1)
    return out.replace(spread=Spread((), (), numbers=found)) if found else out
