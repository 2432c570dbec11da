"""Operators of HLO that move numbers without computing with them, in numpy.

Each takes its instruction, the `Types` in use and its operands. What can be a view is a view.
"""

import math

import numpy as np

from fcjax.audit.hlo.elementwise import Types, true_type
from fcjax.audit.hlo.graph import Instruction, Shape
from fcjax.audit.hlo.proto import Unauditable

# Fields of LiteralProto: packed bytes, or numbers.
_LITERALS = {
    "pred": "preds", "s8": "s8s", "s16": "s16s", "s32": "s32s", "s64": "s64s", "u8": "u8s",
    "u16": "u16s", "u32": "u32s", "u64": "u64s", "f32": "f32s", "f64": "f64s", "f16": "f16s",
    "bf16": "bf16s",
}


def literal(i: Instruction) -> np.ndarray:
    """The numbers of a constant, in the program's own type and logical order."""
    proto, shape = i["literal"], i.shape
    dtype = true_type(shape.dtype)
    if proto is None or shape.dtype not in _LITERALS:
        raise Unauditable(f"{i.name}: expected a constant of numbers, got {shape}")
    data = proto[_LITERALS[shape.dtype]]
    if isinstance(data, bytes):
        flat = np.frombuffer(data, dtype)
    else:
        flat = np.array([n & (1 << 64) - 1 for n in data], np.uint64).astype(dtype)
    if flat.size != math.prod(shape.dims):
        raise Unauditable(f"{i.name}: expected {math.prod(shape.dims)} numbers, got {flat.size}")
    # A literal lies in its own layout, from minor to major.
    order = (proto["shape"]["layout"] or {"minor_to_major": ()})["minor_to_major"]
    return from_memory(flat, Shape(shape.dtype, shape.dims, order or shape.layout))


def in_memory(x: np.ndarray, shape: Shape) -> np.ndarray:
    """A logical array with its dimensions in the order in which they lie in memory."""
    return x.transpose(shape.layout[::-1])


def from_memory(flat: np.ndarray, shape: Shape) -> np.ndarray:
    """The logical array whose numbers lie in memory in the order of `flat`."""
    major = shape.layout[::-1]
    return flat.reshape([shape.dims[d] for d in major]).transpose(np.argsort(major))


def _constant(i: Instruction, types: Types):
    return literal(i).astype(types.of(i.shape.dtype))


def _iota(i: Instruction, types: Types):
    (along,) = i["dimensions"]
    shape = [1] * len(i.shape.dims)
    shape[along] = i.shape.dims[along]
    numbers = np.arange(i.shape.dims[along]).astype(types.of(i.shape.dtype))
    return np.broadcast_to(numbers.reshape(shape), i.shape.dims)


def _same(i: Instruction, types: Types, x):
    return x


def _bitcast(i: Instruction, types: Types, x):
    """The same memory under another shape and layout; types of one width only."""
    source, target = i.operands[0].shape, i.shape
    if source.dtype != target.dtype:
        old, new = true_type(source.dtype), true_type(target.dtype)
        if old.itemsize != new.itemsize:
            raise Unauditable(f"{i.name}: expected a bitcast of one width, got {source} {target}")
        x = np.asarray(x).astype(old).view(new).astype(types.of(target.dtype))
    return from_memory(in_memory(x, source), target)


def _broadcast(i: Instruction, types: Types, x):
    dims = i["dimensions"]
    shape = [1] * len(i.shape.dims)
    for d, n in zip(dims, np.shape(x), strict=True):
        shape[d] = n
    return np.broadcast_to(np.transpose(x, np.argsort(dims)).reshape(shape), i.shape.dims)


def _reshape(i: Instruction, types: Types, x):
    return x.reshape(i.shape.dims)


def _transpose(i: Instruction, types: Types, x):
    return x.transpose(i["dimensions"])


def _slice(i: Instruction, types: Types, x):
    return x[tuple(slice(s.start, s.limit, s.stride) for s in i.slices)]


def _concatenate(i: Instruction, types: Types, *parts):
    (along,) = i["dimensions"]
    return np.concatenate(parts, axis=along)


def _reverse(i: Instruction, types: Types, x):
    return np.flip(x, i["dimensions"])


def _pad(i: Instruction, types: Types, x, fill):
    """Edges may be negative: then they cut."""
    edges = i["padding_config"]["dimensions"]
    out = np.full(i.shape.dims, fill)
    source, target = [], []
    for n, m, e in zip(x.shape, i.shape.dims, edges, strict=True):
        low, step = e["edge_padding_low"], e["interior_padding"] + 1
        # Number k of x goes to low + k * step, if that lies inside.
        first = max(0, -(low // step))
        count = max(0, min(n, -((low - m) // step)) - first)
        source.append(slice(first, first + count))
        start = low + first * step
        target.append(slice(start, start + count * step, step))
    out[tuple(target)] = x[tuple(source)]
    return out


def _starts(indices, sizes, limits) -> list[int]:
    """Where a slice starts: as near to the wanted place as it fits."""
    wanted = (int(n) for n in indices)
    return [min(max(n, 0), m - s) for n, s, m in zip(wanted, sizes, limits, strict=True)]


def _dynamic_slice(i: Instruction, types: Types, x, *indices):
    sizes = i["dynamic_slice_sizes"]
    starts = _starts(indices, sizes, x.shape)
    return x[tuple(slice(n, n + s) for n, s in zip(starts, sizes, strict=True))]


def _dynamic_update_slice(i: Instruction, types: Types, x, update, *indices):
    starts = _starts(indices, update.shape, x.shape)
    out = np.array(x)
    out[tuple(slice(n, n + s) for n, s in zip(starts, update.shape, strict=True))] = update
    return out


def _gather(i: Instruction, types: Types, x, indices):
    """Slices of x at the given places, as near as they fit; one after the other."""
    numbers, sizes = i["gather_dimension_numbers"], i["gather_slice_sizes"]
    if numbers["operand_batching_dims"] or numbers["start_indices_batching_dims"]:
        raise Unauditable(f"{i.name}: expected a gather without batching dimensions")
    along = numbers["index_vector_dim"]
    if along == indices.ndim:
        indices = indices[..., None]
    indices = np.moveaxis(indices, along, -1)
    offsets, collapsed = numbers["offset_dims"], numbers["collapsed_slice_dims"]
    batch = [d for d in range(len(i.shape.dims)) if d not in offsets]
    kept = [n for d, n in enumerate(sizes) if d not in collapsed]
    out = np.empty((*indices.shape[:-1], *kept), x.dtype)
    for place in np.ndindex(indices.shape[:-1]):
        wanted = dict(zip(numbers["start_index_map"], indices[place], strict=True))
        starts = _starts([wanted.get(d, 0) for d in range(x.ndim)], sizes, x.shape)
        window = x[tuple(slice(n, n + s) for n, s in zip(starts, sizes, strict=True))]
        out[place] = window.reshape(kept)
    return out.transpose(np.argsort([*batch, *offsets]))


MOVEMENT = {
    "bitcast": _bitcast,
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "constant": _constant,
    "copy": _same,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "iota": _iota,
    "pad": _pad,
    "reshape": _reshape,
    "reverse": _reverse,
    "slice": _slice,
    "transpose": _transpose,
}
