"""What arithmetic makes of what is known of its operands, coordinate by coordinate."""

import functools
from collections.abc import Callable

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import Dims
from fcjax.audit.domain.values import Kind, Value, mixed
from fcjax.audit.hlo.graph import Instruction
from fcjax.audit.rules import blocks, contraction, uniform


def elementwise(i: Instruction, *operands: Value) -> Value:
    state = [v.plain() for v in operands if v.kind is Kind.STATE]
    out = mixed(i, i.shape, list(operands))
    out = out.replace(uniform=all(v.uniform for v in operands))
    if not state and any(v.kind is Kind.WEIGHT for v in operands):
        return out
    # Scalars may stand beside arrays, as in a clamp.
    dims = [v.dims for v in state or operands if v.shape.dims == i.shape.dims or state]
    return out.replace(dims=functools.reduce(dg.unify, dims)) if dims else out


def _add(i: Instruction, a: Value, b: Value) -> Value:
    """A sum of boundary values, or of one and its bias, is a boundary value."""
    out = uniform.shifted(i, a, b) or uniform.shifted(i, b, a) or blocks.added(i, a, b)
    if out is not None:
        return out
    out = elementwise(i, a, b)
    if out.kind is not Kind.STATE or any(d.state == dg.OPAQUE for d in out.digits):
        return out
    parts: list[str] = []
    for v in (a, b):
        if v.kind is Kind.STATE and v.sum is not None:
            parts += v.sum
        elif v.kind is Kind.WEIGHT and not v.scaled and _runs_along(v.dims, out.dims):
            parts.append(v.origin)
        else:
            return out
    total = tuple(sorted(parts))
    return out.replace(sum=total, reads=frozenset([total]))


def _runs_along(weight: Dims, state: Dims) -> bool:
    """Is a bias added to the coordinates that it was declared for?"""
    pairs = (p for x, y in zip(weight, state, strict=True) for p in dg.align(x, y))
    return all(w.weight is None or w.weight == s.state for w, s in pairs)


def _subtract(i: Instruction, a: Value, b: Value) -> Value:
    return uniform.shifted(i, a, b) or elementwise(i, a, b)


def _multiply(i: Instruction, a: Value, b: Value) -> Value:
    out = uniform.scaled(i, a, b) or uniform.scaled(i, b, a) or contraction.multiply(i, a, b)
    return out or elementwise(i, a, b)


def _divide(i: Instruction, a: Value, b: Value) -> Value:
    return uniform.scaled(i, a, b) or elementwise(i, a, b)


def _compare(i: Instruction, a: Value, b: Value) -> Value:
    return uniform.comparison(i, a, b, elementwise(i, a, b))


def _is_finite(i: Instruction, value: Value) -> Value:
    return uniform.is_finite(i, value, elementwise(i, value))


def _select(i: Instruction, which: Value, true: Value, false: Value) -> Value:
    return uniform.guarded(i, which, true, false) or elementwise(i, which, true, false)


_ELEMENTWISE = """
    abs acos acosh and asin asinh atan2 atanh cbrt ceil clamp clz cosine cosh count-leading-
    zeros erf exponential exponential-minus-one floor imag log log-plus-one
    logistic maximum minimum negate not or popcnt power real reduce-precision remainder
    round-nearest-afz round-nearest-even rsqrt shift-left shift-right-arithmetic
    shift-right-logical sign sine sinh sqrt stochastic-convert tan tanh xor complex
""".split()

RULES: dict[str, Callable] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    "add": _add,
    "compare": _compare,
    "divide": _divide,
    "is-finite": _is_finite,
    "multiply": _multiply,
    "select": _select,
    "subtract": _subtract,
}
