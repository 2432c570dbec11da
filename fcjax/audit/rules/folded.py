"""Arrays in one transfer: what is concatenated before it is taken apart after it.

A norm's sum of squares may travel as a column of what it normalises, one for each owner. The whole
is as good as its parts: each is judged by itself, and slices find them again.
"""

import dataclasses
import math

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.values import Kind, Value, mixed
from fcjax.audit.hlo.graph import Instruction, Shape
from fcjax.audit.rules import contraction

_LAYOUTS = {"bitcast", "convert", "copy", "reshape"}


def fold(i: Instruction, operands: tuple[Value, ...], out: Value) -> Value:
    """A concatenation; its parts are kept if each of them might cross."""
    if all(v.kind is Kind.STATE and contraction.power_sum(v) for v in operands):
        return out.replace(parts=operands, along=i["dimensions"][0])
    return out


def carried(i: Instruction, value: Value, out: Value) -> Value:
    """`out`, which is the value in another layout, with its parts in that layout too."""
    along = _place(i, value) if value.parts and i.opcode in _LAYOUTS else None
    if along is None:
        return out.replace(parts=(), along=0)
    parts = tuple(_laid_out(i, v, along, v.shape.dims[value.along]) for v in value.parts)
    return out.replace(parts=parts, along=along)


def _place(i: Instruction, value: Value) -> int | None:
    """Where the dimension of the parts comes to lie: as long, in steps of as many elements."""
    before, after = _steps(i, value.shape)[value.along], _steps(i, i.shape)
    size = value.shape.dims[value.along]
    places = [d for d, n in enumerate(i.shape.dims) if (n, after[d]) == (size, before)]
    return places[0] if len(places) == 1 else None


def _steps(i: Instruction, shape: Shape) -> dict[int, int]:
    """Elements from one coordinate of each dimension to the next, as the operator counts them."""
    order = shape.layout if i.opcode == "bitcast" else tuple(reversed(range(len(shape.dims))))
    return {d: math.prod(shape.dims[e] for e in order[:n]) for n, d in enumerate(order)}


def _laid_out(i: Instruction, part: Value, along: int, size: int) -> Value:
    shape = with_size(i.shape, along, size)
    dims = part.dims
    if i.opcode == "bitcast":
        dims = dg.bitcast(dims, part.shape.layout, shape.dims, shape.layout)
    elif i.opcode == "reshape":
        dims = dg.reshape(dims, shape.dims)
    return part.replace(shape=shape, dims=dims)


def with_size(shape: Shape, along: int, size: int) -> Shape:
    dims = (*shape.dims[:along], size, *shape.dims[along + 1 :])
    return dataclasses.replace(shape, dims=dims)


def together(i: Instruction, shape: Shape, value: Value, parts: list[Value]) -> Value:
    """What a node receives, made of the parts that it receives."""
    out = mixed(i, shape, parts)
    return out if out.complete else out.replace(parts=tuple(parts), along=value.along)


def sliced(i: Instruction, value: Value) -> Value | None:
    """The part that a slice finds again; None if it is not one of them."""
    start = 0
    for part in value.parts:
        size = part.shape.dims[value.along]
        ranges = [(0, n, 1) for n in i.shape.dims]
        ranges[value.along] = (start, start + size, 1)
        if [(s.start, s.limit, s.stride) for s in i.slices] == ranges:
            return part.replace(shape=i.shape)
        start += size
    return None
