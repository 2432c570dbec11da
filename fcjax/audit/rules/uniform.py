"""What leaves a value what it is: one factor or shift for a whole row, and a guard against NaN.

A norm may scale its input before or after the contraction, on either side of the scatter, and may
take its mean first; a guard puts a number where there is none. All act on each coordinate alike.
A factor that differs from coordinate to coordinate, or from node to node, is a mask.
"""

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.values import Kind, Trail, Value, mixed
from fcjax.audit.hlo.graph import Instruction
from fcjax.audit.rules import contraction

_INFINITY = {"f32": (32, 0x7F800000), "bf16": (16, 0x7F80), "f16": (16, 0x7C00)}


def scaled(i: Instruction, value: Value, by: Value) -> Value | None:
    """A value that one number scales in each row; None if it is anything else."""
    if not by.uniform or value.uniform or not _of_the_rows(by, value):
        return None
    product = contraction.power_sum(value)
    if value.kind is Kind.WEIGHT:
        known = {"shape": i.shape, "scaled": True}
        return value.replace(**known) if by.kind is Kind.PUBLIC else None
    if value.kind is not Kind.STATE or (product is None and value.boundary is None):
        return None
    out = mixed(i, i.shape, [value, by]).replace(dims=value.dims)
    if product is None:
        return out.replace(image=value.boundary)
    return out.replace(product=product._replace(scaled=True))


def shifted(i: Instruction, value: Value, by: Value) -> Value | None:
    """A boundary value that one number shifts in each row; None if it is anything else."""
    if not by.uniform or value.boundary is None or not _of_the_rows(by, value):
        return None
    return mixed(i, i.shape, [value, by]).replace(dims=value.dims, image=value.boundary)


def _of_the_rows(by: Value, value: Value) -> bool:
    """Does nothing run along it but the rows of the value?"""
    pairs = (p for x, y in zip(by.dims, value.dims, strict=True) for p in dg.align(x, y))
    return all(b.state is None or b == v for b, v in pairs)


def comparison(i: Instruction, a: Value, b: Value, out: Value) -> Value:
    """A comparison, and of what it says where that is a number."""
    direction = i["comparison_direction"]
    if direction not in ("EQ", "NE") or a.kind is not Kind.STATE:
        return out
    if _same(a, b):
        return out.replace(number_of=(a, direction == "EQ"))
    infinite = b.uniform and _is_infinite(i.operands[1])
    return out.replace(number_of=(a, direction == "NE")) if infinite else out


def is_finite(i: Instruction, value: Value, out: Value) -> Value:
    """`out`, which says where a value is finite."""
    return out.replace(number_of=(value, True)) if value.kind is Kind.STATE else out


def guarded(i: Instruction, which: Value, true: Value, false: Value) -> Value | None:
    """A value in which one number stands where there is none; None if it is anything else."""
    if which.number_of is None:
        return None
    value, where = which.number_of
    kept, other = (true, false) if where else (false, true)
    followed = kept.product is not None or kept.boundary is not None
    if not (followed and other.uniform and _same(value, kept)):
        return None
    return kept.replace(trail=Trail(i, kept.trail))


def _same(a: Value, b: Value) -> bool:
    return a == b or contraction.same_boundary(a, b)


def _is_infinite(i: Instruction) -> bool:
    while i.opcode in ("bitcast", "broadcast", "convert", "copy", "reshape"):
        (i,) = i.operands
    if i.opcode != "constant" or i.shape.dtype not in _INFINITY or not i["literal"]:
        return False
    bits = int.from_bytes(i["literal"][f"{i.shape.dtype}s"], "little")
    n, infinity = _INFINITY[i.shape.dtype]
    return bits & ~(1 << (n - 1)) == infinity
