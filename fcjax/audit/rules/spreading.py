"""What runs along the dimensions of results, where `local` knows it only of a plan's own operators.

Beside what `local` does, these rules keep what is known of the dimensions that an operator leaves
alone, and say over which coordinates an operator sums.
"""

import functools
from collections.abc import Collection, Hashable

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain import spread as sp
from fcjax.audit.domain.digits import Digit, Part
from fcjax.audit.domain.spread import COORDINATES, ROWS
from fcjax.audit.domain.values import Tree, Value, leaves, mixed
from fcjax.audit.hlo import called
from fcjax.audit.hlo.graph import Instruction

Digits = tuple[Digit, ...]

# Operators that take or place elements, and what of them is no part of what they do.
_MOVES = {
    "bitcast", "broadcast", "convert", "copy", "dynamic-slice", "reshape", "slice", "transpose",
}
_PRODUCTS = {"multiply", "add", "subtract", "divide", "select", "maximum", "minimum"}
_NAMES = {"name", "id", "operand_ids", "metadata", "sharding", "frontend_attributes"}


def gone(i: Instruction, operands: list[Tree]) -> tuple[Digit, ...] | None:
    """Digits over which it sums, or takes the largest, or looks up by an index; None for none."""
    values = leaves(tuple(operands))
    match i.opcode:
        case "dot" | "custom-call" if len(values) == 2:
            numbers = i["dot_dimension_numbers"] or called.gemm_dimensions(i)
            if not numbers:
                return None
            over = [numbers[f"{side}_contracting_dimensions"] for side in ("lhs", "rhs")]
        case "reduce":
            count = len(values) // 2
            values, over = values[:count], [i["dimensions"]] * count
        case "reduce-window" if len(values) == 2:
            values, out = values[:1], i.shape.dims
            over = [[d for d, n in enumerate(values[0].shape.dims) if out[d] == 1 != n]]
        case "gather":
            values, sizes = values[:1], i["gather_slice_sizes"]
            over = [[d for d, n in enumerate(values[0].shape.dims) if sizes[d] != n]]
        case _:
            return None
    return tuple(x for v, dims in zip(values, over, strict=True) for d in dims for x in v.dims[d])


def rule(i: Instruction, operands: list[Tree]) -> Tree | None:
    """What is known of the result; None if `local` knows it."""
    match i.opcode, operands:
        case "gather", [Value() as value, Value() as index]:
            return _gather(i, value, index)
        case "scatter", [Value() as value, Value(), Value() as updates]:
            return _scatter(i, value, updates)
        case "dynamic-slice", [Value() as value, *starts]:
            return _dynamic_slice(i, value, starts)
        case "dynamic-update-slice", [Value() as value, Value() as update, *starts]:
            return _dynamic_update_slice(i, value, update, starts)
        case "slice", [Value() as value] if not _is_cut(value, i):
            return _with(i, [value], [_part(d, n) for d, n in _sizes(value, i)])
        case "reduce", [Value() as value, *_] if i.shape.dtype == "tuple":
            kept = [d for n, d in enumerate(value.dims) if n not in i["dimensions"]]
            values = leaves(tuple(operands))
            return tuple(_with(i, values, kept, shape) for shape in i.shape.leaves())
        case "select", [Value() as which, Value() as a, Value() as b] if which.spread.numbers:
            return _with(i, [a, b], _chosen_dims(which.spread.numbers, a.dims, b.dims))
        case "concatenate", values:
            return _concatenate(i, leaves(tuple(values)))
        case "sort" | "topk" | "custom-call", _ if _sorts(i):
            return _sort(i, leaves(tuple(operands)))
    return None


def _with(i: Instruction, operands: list[Value], dims, shape=None) -> Value:
    shape = shape or i.shape
    return mixed(i, shape, operands).replace(dims=tuple(dg.join(d) for d in dims))


def _sizes(value: Value, i: Instruction):
    """(digits, new size) of each dimension."""
    return zip(value.dims, i.shape.dims, strict=True)


def _part(digits: Digits, n: int) -> Digits:
    """Some of the coordinates along a dimension: all digits of them, if they are whole."""
    if dg.size(digits) == n:
        return digits
    return (_one(digits, n),)


def _one(digits: Collection[Digit], n: int) -> Digit:
    """n coordinates of which it is only known that they are some of these."""
    tags = [{getattr(d, side) for d in digits} for side in ("state", "weight")]
    tags = [t.pop() if len(t) == 1 else dg.OPAQUE if t else None for t in tags]
    return Digit(n, *(dg.OPAQUE if isinstance(t, Part) else t for t in tags))


def _is_cut(value: Value, i: Instruction) -> bool:
    """Does a slice cut through a dimension that is dealt out over the nodes?"""
    return any(dg.size(d) != n and sp.cuts_of(d) for d, n in _sizes(value, i))


def _dynamic_slice(i: Instruction, value: Value, starts: list[Value]) -> Value:
    dims = []
    for (digits, n), start in zip(_sizes(value, i), starts, strict=True):
        own = tuple(frozenset([b]) for b in start.spread.same)
        if dg.size(digits) == n or sp.is_whole(own) or sp.cuts_of(digits):
            dims.append(_part(digits, n))
        elif len(set(own)) * n > dg.size(digits):
            dims.append((Digit(n, dg.OPAQUE),))
        else:  # each node takes a part of what it has whole
            rows = bool(digits) and all(map(sp.is_row, digits))
            dims.append((Digit(n, Part(sp.axis(_numbered(own), n, rows), 1)),))
    return _with(i, [value, *starts], dims)


def _concatenate(i: Instruction, operands: list[Value]) -> Value:
    (along,) = i["dimensions"]
    joined = _one([d for v in operands for d in v.dims[along]], i.shape.dims[along])
    others = [[() if d == along else x for d, x in enumerate(v.dims)] for v in operands]
    dims = list(functools.reduce(dg.unify, others))
    return _with(i, operands, [*dims[:along], (joined,), *dims[along + 1 :]])


def copied(i: Instruction, states: list[Value], out: Value) -> Value:
    """A product of two states: along what only one has, the other one is copied.

    Who is handed a part of such a dimension is handed all of the other state, as with rows.
    """
    dims = list(out.dims)
    if i.opcode == "dot" and len(states) == 2:
        left, right = (_free(i, v, side) for v, side in zip(states, ("lhs", "rhs"), strict=True))
        batch, a, b = len(dims) - len(left) - len(right), len(left), len(right)
        if any(map(_has_coordinates, right)):
            dims[batch : batch + a] = map(_as_rows, dims[batch : batch + a])
        if any(map(_has_coordinates, left)) and b:
            dims[-b:] = map(_as_rows, dims[-b:])
    elif i.opcode in _PRODUCTS:
        for v in states:
            if v.shape.dims == out.shape.dims and any(map(_has_coordinates, v.dims)):
                dims = [
                    d if any(t is not None for x in mine for t in x[1:]) else _as_rows(d)
                    for mine, d in zip(v.dims, dims, strict=True)
                ]
    return out.replace(dims=tuple(dims))


def _free(i: Instruction, value: Value, side: str) -> list[Digits]:
    numbers = i["dot_dimension_numbers"]
    used = (*numbers[f"{side}_contracting_dimensions"], *numbers[f"{side}_batch_dimensions"])
    return [digits for d, digits in enumerate(value.dims) if d not in used]


def _has_coordinates(digits: Digits) -> bool:
    return any(not sp.is_row(d) for d in digits)


def _as_rows(digits: Digits) -> Digits:
    return tuple(d._replace(state=ROWS) if d.state == COORDINATES else d for d in digits)


def content(i: Instruction) -> Hashable:
    """Equal for two instructions that are known to make the same of the same operands."""
    if i.opcode not in _MOVES:
        return id(i)
    return str(sorted((name, str(v)) for name, v in i.attributes.items() if name not in _NAMES))


def sliced(i: Instruction, value: Value) -> frozenset:
    """What runs along the dimensions of which a slice takes a part."""
    return frozenset(
        t for d, n in _sizes(value, i) if dg.size(d) != n for x in d for t in x[1:] if t is not None
    )


def chosen(made: sp.Spread, which: sp.Spread, a: sp.Spread, b: sp.Spread) -> sp.Spread:
    """Of an array that is one of two, where it is known which one on each node."""
    of = [a if n else b for n in which.numbers]
    reach = tuple(s.reach[d] for d, s in enumerate(of))
    return made.replace(reach=reach, same=tuple(s.same[d] for d, s in enumerate(of)))


def _chosen_dims(which: tuple[int, ...], a: dg.Dims, b: dg.Dims) -> dg.Dims:
    def tag(s: dg.Tag, t: dg.Tag, size: int) -> dg.Tag:
        left, right = list(sp.cuts(s)), list(sp.cuts(t))
        if s == t or len(left) != 1 or len(right) != 1:
            return dg.merge(s, t)
        (one, rows), (other, others) = left[0], right[0]
        cut = tuple((one if n else other)[d] for d, n in enumerate(which))
        return Part(sp.axis(cut, size, rows and others), 1)

    return tuple(
        dg.join(Digit(p.size, tag(p[1], q[1], p.size), tag(p[2], q[2], p.size)) for p, q in pairs)
        for pairs in (dg.align(x, y) for x, y in zip(a, b, strict=True))
    )


def _numbered(cut: sp.Cut) -> sp.Cut:
    """The same cut with its blocks numbered from 0, in the order of the nodes."""
    order = list(dict.fromkeys(cut))
    return tuple(frozenset([order.index(b)]) for b in cut)


def _dynamic_update_slice(i: Instruction, value: Value, update: Value, starts) -> Value:
    """A cache with new entries, or a node's own block among zeros."""
    dims = []
    for old, new in zip(value.dims, update.dims, strict=True):
        if dg.size(old) == dg.size(new):
            dims.append(dg.unify((old,), (new,))[0])
            continue
        tags = {t for d in (*old, *new) for t in d[1:] if t is not None}
        if len(tags) < 2 or not any(isinstance(t, Part) for t in tags):
            tag = tags.pop() if len(tags) == 1 else ROWS if ROWS in tags else None
        else:
            tag = dg.OPAQUE
        dims.append((Digit(dg.size(old), tag),))
    return _with(i, [value, update, *starts], dims)


def _gather(i: Instruction, value: Value, index: Value) -> Value:
    """Rows at indices: what runs along the rows, and along the indices."""
    numbers, sizes = i["gather_dimension_numbers"], i["gather_slice_sizes"]
    left_out = {*numbers["collapsed_slice_dims"], *numbers["operand_batching_dims"]}
    columns = [d for d in range(len(sizes)) if d not in left_out]
    dims = {
        out: _part(value.dims[d], sizes[d])
        for out, d in zip(numbers["offset_dims"], columns, strict=True)
    }
    rows = [d for n, d in enumerate(index.dims) if n != numbers["index_vector_dim"]]
    others = [d for d in range(len(i.shape.dims)) if d not in dims]
    for out, digits in zip(others, rows, strict=True):
        dims[out] = tuple(d if d.state is not None else Digit(d.size, ROWS) for d in digits)
    return _with(i, [value, index], [dims[d] for d in range(len(i.shape.dims))])


def _scatter(i: Instruction, value: Value, updates: Value) -> Value:
    """An array into which others are put at indices: along the other dimensions it is as they."""
    numbers = i["scatter_dimension_numbers"]
    left_out = {*numbers["inserted_window_dims"], *numbers["input_batching_dims"]}
    window = [d for d in range(len(value.dims)) if d not in left_out]
    dims = list(value.dims)
    for d, n in zip(window, numbers["update_window_dims"], strict=True):
        if dg.size(dims[d]) == dg.size(updates.dims[n]):
            dims[d] = dg.unify((dims[d],), (updates.dims[n],))[0]
    return _with(i, [value, updates], dims)


def _sorts(i: Instruction) -> bool:
    return i.opcode != "custom-call" or i["custom_call_target"] == "TopK"


def _sort(i: Instruction, operands: list[Value]) -> Tree:
    """Along all dimensions but the one that is sorted, everything is where it was."""
    along = i["dimensions"][0] if i.opcode == "sort" else len(operands[0].dims) - 1
    dims = list(functools.reduce(dg.unify, (v.dims for v in operands)))
    out = []
    for shape in i.shape.leaves():
        sorted_dim = _part(dims[along], shape.dims[along])
        tags = tuple(None if all(d[k] is None for d in sorted_dim) else dg.OPAQUE for k in (1, 2))
        new = [*dims[:along], (Digit(shape.dims[along], *tags),), *dims[along + 1 :]]
        out.append(_with(i, operands, new, shape))
    return tuple(out) if i.shape.dtype == "tuple" else out[0]
