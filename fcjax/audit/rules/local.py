"""What each operator that runs on the node itself makes of what is known of its operands.

Every rule is conservative: what it cannot follow loses its axes (`OPAQUE`), its product and its
standing as a boundary value, and such a value may not leave the node. An operator that is not
listed is an `Unauditable` error.
"""

import math
from collections.abc import Callable

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import Digit, Dims
from fcjax.audit.domain.values import CONSTANT, Kind, Trail, Value, mixed, public
from fcjax.audit.hlo.elementwise import is_float
from fcjax.audit.hlo.graph import Instruction, Unauditable
from fcjax.audit.rules import arithmetic, blocks, contraction, folded, lookup, loops


def _is_constant(value: Value) -> bool:
    """Is it made of constants alone? What a weight was made into is public too."""
    return value.kind is Kind.PUBLIC and value.origin == CONSTANT


def _carry(i: Instruction, value: Value, dims: Dims) -> Value:
    """The same value in another layout or type."""
    trail = Trail(i, value.trail) if value.kind is Kind.STATE else None
    return folded.carried(i, value, value.replace(shape=i.shape, dims=dims, trail=trail))


def _convert(i: Instruction, value: Value) -> Value:
    # Rounding to another float keeps what a value is; integers and booleans do not. A weight may be
    # stored in integers.
    stored = value.kind is Kind.WEIGHT and value.shape.dtype in ("s8", "u8")
    if is_float(i.shape.dtype) and (stored or is_float(value.shape.dtype)):
        return _carry(i, value, value.dims)
    return arithmetic.elementwise(i, value)


def _bitcast(i: Instruction, value: Value) -> Value:
    # A bitcast may also change the type: then its bits are no longer the same numbers.
    if value.shape.dtype != i.shape.dtype:
        if math.prod(value.shape.dims) != math.prod(i.shape.dims):
            return mixed(i, i.shape, [value])
        bits = mixed(i, value.shape, [value])
        value = bits.replace(dims=value.plain().dims) if value.kind is Kind.STATE else bits
    return _carry(
        i, value, dg.bitcast(value.dims, value.shape.layout, i.shape.dims, i.shape.layout)
    )


def _bitcast_convert(i: Instruction, value: Value) -> Value:
    """The bits of each element as another type; of another width, and elements come or go."""
    same = value.shape.dims == i.shape.dims
    return arithmetic.elementwise(i, value) if same else mixed(i, i.shape, [value])


def _copy(i: Instruction, value: Value) -> Value:
    return _carry(i, value, value.dims)


def _reshape(i: Instruction, value: Value) -> Value:
    return _carry(i, value, dg.reshape(value.dims, i.shape.dims))


def _transpose(i: Instruction, value: Value) -> Value:
    return _carry(i, value, tuple(value.dims[d] for d in i["dimensions"]))


def _broadcast(i: Instruction, value: Value) -> Value:
    dims = [dg.join([Digit(n)]) for n in i.shape.dims]
    for source, target in enumerate(i["dimensions"]):
        dims[target] = value.dims[source]
    return _carry(i, value, tuple(dims))


def _dot(i: Instruction, a: Value, b: Value) -> Value:
    return contraction.dot(i, a, b, i["dot_dimension_numbers"])


def _reduce(i: Instruction, *operands: Value) -> Value | tuple:
    over = i["dimensions"]
    if len(operands) != 2:  # several arrays at once, as for argmax
        return tuple(mixed(i, shape, list(operands)) for shape in i.shape.leaves())
    value, initial = operands
    if value.kind is not Kind.STATE or not _is_constant(initial):
        return mixed(i, i.shape, list(operands))
    combine = contraction.combines(i.called[0])
    if combine:
        return contraction.reduce(i, value, over, combine)
    kept = tuple(d for n, d in enumerate(value.plain().dims) if n not in over)
    return mixed(i, i.shape, [value]).replace(dims=kept)


def _reduce_window(i: Instruction, *operands: Value) -> Value | tuple:
    """A tree reduction's first half: a sum or a maximum (of a softmax) over consecutive windows."""
    if len(operands) != 2:
        return _mixed(i, *operands)
    value, initial = operands
    windows = i["window"]["dimensions"]
    if value.kind is not Kind.STATE or not _is_constant(initial):
        return _mixed(i, *operands)
    combine = contraction.combines(i.called[0])
    out = contraction.reduce_runs(i, value, windows, combine) if combine else None
    if out is not None:
        return out
    # A dimension whose windows hold one coordinate each keeps its order.
    return _cut(i, value, [contraction.in_place(w) for w in windows])


def _cut(i: Instruction, value: Value, whole: list[bool]) -> Value:
    """State of which only some dimensions are kept whole; the others lose their order."""
    out = mixed(i, i.shape, [value])
    if value.kind is not Kind.STATE:
        return out
    dims = tuple(
        d if w else dg.join([Digit(n, dg.OPAQUE if any(x.state is not None for x in d) else None)])
        for d, w, n in zip(value.plain().dims, whole, i.shape.dims, strict=True)
    )
    return out.replace(dims=dims)


def _slice(i: Instruction, value: Value) -> Value:
    sizes = zip(value.shape.dims, i.slices, strict=True)
    whole = [(s.start, s.limit, s.stride) == (0, n, 1) for n, s in sizes]
    if all(whole):
        return _carry(i, value, value.dims)
    part = folded.sliced(i, value)
    if part is not None:
        return part
    # Padding that is taken off again leaves what there was.
    bare = [
        d if w else s.stride == 1 and dg.uncover(d, s.start, s.limit - s.start)
        for d, s, w in zip(value.dims, i.slices, whole, strict=True)
    ]
    if all(d or w for d, w in zip(bare, whole, strict=True)):
        return _carry(i, value, tuple(bare)).replace(sum=None, image=None)
    run = blocks.run(i, value, [s.start for s in i.slices]) if _are_runs(i) else None
    return _cut(i, value, whole) if run is None else run


def _are_runs(i: Instruction) -> bool:
    return all(s.stride == 1 for s in i.slices)


def _dynamic_slice(i: Instruction, value: Value, *starts: Value) -> Value:
    if any(s.kind is not Kind.PUBLIC for s in starts):
        return mixed(i, i.shape, [value, *starts])
    whole = [a == b for a, b in zip(value.shape.dims, i.shape.dims, strict=True)]
    row = lookup.dynamic_slice(i, value) if value.rows else None
    if row is not None:
        return row
    if all(whole):
        return _carry(i, value, value.dims)
    run = blocks.run_at(i, value, [loops.number(s) for s in starts])
    return _cut(i, value, whole) if run is None else run


def _pad(i: Instruction, value: Value, filler: Value) -> Value:
    """Constants before and after a dimension: what it stood for is found again between them."""
    pads = i["padding_config"]["dimensions"]
    edges = [(p["edge_padding_low"], p["edge_padding_high"]) for p in pads]
    inside = any(p["interior_padding"] for p in pads)
    if not _is_constant(filler) or inside or any(min(e) < 0 for e in edges):
        return mixed(i, i.shape, [value, filler])
    if value.kind is Kind.PUBLIC:
        return mixed(i, i.shape, [value, filler])
    dims = []
    for digits, (low, high), n in zip(value.dims, edges, i.shape.dims, strict=True):
        if (low or high) and digits and any(t is not None for d in digits for t in d[1:]):
            digits = dg.enclose(digits, n, low)
        elif low or high:
            digits = dg.join([Digit(n, dg.OPAQUE)])
        dims.append(digits)
    if value.kind is Kind.WEIGHT or value.product or value.reduced:
        return _carry(i, value, tuple(dims)).replace(sum=None, image=None)
    return mixed(i, i.shape, [value]).replace(dims=tuple(dims))


def _concatenate(i: Instruction, *operands: Value) -> Value:
    whole = blocks.concatenated(i, operands)
    if whole is not None:
        return whole
    (along,) = i["dimensions"]
    out = mixed(i, i.shape, list(operands))
    state = [v.plain() for v in operands if v.kind is Kind.STATE]
    if not state:
        return out
    hide = lambda dims: (*dims[:along], (), *dims[along + 1 :])  # noqa: E731
    dims = hide(state[0].dims)
    for other in state[1:]:
        dims = dg.unify(dims, hide(other.dims))
    out = out.replace(dims=(*dims[:along], out.dims[along], *dims[along + 1 :]))
    return folded.fold(i, operands, out)


def _dynamic_update_slice(i: Instruction, value: Value, update: Value, *starts: Value) -> Value:
    """A cache with new entries: along the dimension that is written it keeps its own axis."""
    out = mixed(i, i.shape, [value, update, *starts])
    if Kind.STATE not in (value.kind, update.kind) or Kind.WEIGHT in (value.kind, update.kind):
        return out
    if any(s.kind is not Kind.PUBLIC for s in starts):
        return out
    dims = []
    for old, new, n, m in zip(
        value.plain().dims, update.plain().dims, value.shape.dims, update.shape.dims, strict=True
    ):
        if n == m:
            dims.append(dg.unify((old,), (new,))[0])
        elif all(isinstance(d.state, dg.Part) and not d.state.axis.split for d in (*old, *new)):
            dims.append(old)
        else:
            dims.append(dg.join([Digit(n, dg.OPAQUE)]))
    return out.replace(dims=tuple(dims))


def _gather(i: Instruction, value: Value, index: Value) -> Value:
    row = lookup.gather(i, value, index) if value.rows else None
    return mixed(i, i.shape, [value, index]) if row is None else row


def _source(i: Instruction) -> Value:
    what = {"partition-id": "the node's number", "iota": "an iota", "constant": CONSTANT}
    one = i.opcode == "constant" and math.prod(i.shape.dims) == 1
    return public(i.shape, what.get(i.opcode, i.opcode)).replace(uniform=one)


def _mixed(i: Instruction, *operands: Value) -> Value | tuple:
    """Runs on the node, but scrambles coordinates."""
    out = tuple(mixed(i, shape, list(operands)) for shape in i.shape.leaves())
    return out if i.shape.dtype == "tuple" else out[0]


_MIXED = """
    batch-norm-grad batch-norm-inference batch-norm-training cholesky convolution
    fft map reverse scatter select-and-scatter sort topk triangular-solve
    rng rng-bit-generator rng-get-and-update-state get-dimension-size ragged-dot scan
""".split()

RULES: dict[str, Callable] = {
    **arithmetic.RULES,
    **dict.fromkeys(_MIXED, _mixed),
    **dict.fromkeys(("constant", "iota", "partition-id", "replica-id"), _source),
    "bitcast": _bitcast,
    "bitcast-convert": _bitcast_convert,
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "convert": _convert,
    "copy": _copy,
    "dot": _dot,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "pad": _pad,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "reshape": _reshape,
    "slice": _slice,
    "transpose": _transpose,
}


def apply(i: Instruction, operands: list[Value]) -> Value | tuple:
    """What is known of the instruction's result; Unauditable if the operator is not known."""
    rule = RULES.get(i.opcode)
    if rule is None:
        raise Unauditable(f"{i.name}: expected a known operator, got {i.opcode}")
    return rule(i, *operands)
