"""Blocks of a weight: halves that are contracted one by one, one of several in one array.

A run of coordinates is an axis of its own (`digits.run_of`). What is contracted with a block is a
product with that block; blocks that follow each other are put together again where their products
are added (the runs were summed over) or concatenated (they were kept).
"""

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import Axis, Digit, Part
from fcjax.audit.domain.values import Kind, Product, Trail, Value, is_split, mixed
from fcjax.audit.hlo.graph import Instruction


def run(i: Instruction, value: Value, starts: list[int]) -> Value | None:
    """A run of coordinates, of one axis along each dimension; None if it is not that.

    Of state only the split axis is followed: only that is contracted in parts.
    """
    value = value.plain()
    dims, runs = [], {(a.name, a.split): a for a in value.runs}
    for digits, n, low in zip(value.dims, i.shape.dims, starts, strict=True):
        if dg.size(digits) == n:
            dims.append(digits)
            continue
        axis = _whole_axis(digits, value)
        if axis is None:
            return None
        part = dg.run_of(axis, low, n)
        tag = Part(part, 1)
        runs[axis.name, axis.split] = part
        dims.append(dg.join([Digit(n, *((None, tag) if value.kind is Kind.WEIGHT else (tag,)))]))
    if value.kind is Kind.WEIGHT:
        return value.replace(shape=i.shape, dims=tuple(dims), runs=_sorted(runs.values()))
    return mixed(i, i.shape, [value]).replace(dims=tuple(dims))


def run_at(i: Instruction, value: Value, starts: list[int | None]) -> Value | None:
    """The same at starts of which some are not known; None where such a one matters."""
    sizes = zip(starts, value.shape.dims, i.shape.dims, strict=True)
    found = [0 if n == m else None if s is None else min(max(s, 0), n - m) for s, n, m in sizes]
    return None if None in found else run(i, value, found)


def _whole_axis(digits, value: Value) -> Axis | None:
    """The one axis that runs along a dimension, whole and in order."""
    if len(digits) != 1 or value.rows:
        return None
    _, state, weight = digits[0]
    tag, other = (weight, state) if value.kind is Kind.WEIGHT else (state, weight)
    if not isinstance(tag, Part) or other is not None or tag.axis.parts or tag.axis.inner:
        return None
    if value.kind is not Kind.WEIGHT and not is_split(tag):
        return None
    return tag.axis if (tag.axis.size, tag.stride) == (digits[0].size, 1) else None


def _sorted(runs) -> tuple[Axis, ...]:
    return tuple(sorted((a for a in runs if a.run), key=lambda a: (a.name, a.split)))


def added(i: Instruction, a: Value, b: Value) -> Value | None:
    """The sum of two products with runs of a weight that were summed over."""
    pair = _neighbours(a, b)
    if pair is None or a.dims != b.dims:
        return None
    first, second, whole = pair
    gone = [_over(v.product, axis) for v, axis in ((a, first), (b, second))]
    if None in gone or gone[0] != gone[1]:
        return None
    tag = Part(whole, 1)
    contracted = (*gone[0], Digit(whole.size, tag, tag))
    return _joined(i, a, b, whole).replace(
        dims=a.dims, product=_product(a.product, whole)._replace(contracted=contracted)
    )


def _over(product: Product, axis: Axis) -> tuple[Digit, ...] | None:
    """What else was summed over, if this run was, against the same coordinates of state."""
    tag = Part(axis, 1)
    digit = Digit(axis.size, tag, tag)
    if product.contracted.count(digit) != 1:
        return None
    return tuple(d for d in product.contracted if d != digit)


def concatenated(i: Instruction, operands: tuple[Value, ...]) -> Value | None:
    """Products with runs of a weight, in order, along the dimension on which these run."""
    (along,) = i["dimensions"]
    out = operands[0]
    for value in operands[1:]:
        pair = _neighbours(out, value)
        if pair is None or out.product.contracted != value.product.contracted:
            return None
        first, second, whole = pair
        for v, axis in ((out, first), (value, second)):
            if v.dims[along] != dg.join([Digit(axis.size, None, Part(axis, 1))]):
                return None
        rest = [(*v.dims[:along], *v.dims[along + 1 :]) for v in (out, value)]
        if rest[0] != rest[1]:
            return None
        joined = dg.join([Digit(whole.size, None, Part(whole, 1))])
        dims = (*out.dims[:along], joined, *out.dims[along + 1 :])
        product = _product(out.product, whole)
        out = _joined(i, out, value, whole).replace(dims=dims, product=product)
    return out


def _neighbours(a: Value, b: Value) -> tuple[Axis, Axis, Axis] | None:
    """The one run in which two products differ: of the first, of the second, and both together."""
    if not (a.product and b.product) or a.product.weight != b.product.weight:
        return None
    if a.product.weight is None or len(a.product.runs) != len(b.product.runs):
        return None
    pairs = zip(a.product.runs, b.product.runs, strict=True)
    different = [(x, y) for x, y in pairs if x != y]
    if len(different) != 1:
        return None
    ((first, second),) = different
    whole = dg.following(first, second)
    return (first, second, whole) if whole else None


def _product(product: Product, whole: Axis) -> Product:
    """The product with two runs put together."""
    runs = [r for r in product.runs if (r.name, r.split) != (whole.name, whole.split)]
    return product._replace(runs=_sorted([*runs, whole]))


def _joined(i: Instruction, a: Value, b: Value, whole: Axis) -> Value:
    out = mixed(i, i.shape, [a, b])
    return out.replace(trail=Trail(i, a.trail))
