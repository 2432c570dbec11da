"""Operators of HLO that add up (or take the largest of) many numbers, in numpy.

Large contractions are the whole cost of an evaluation: each goes through one matrix product, also
where a program writes it as a multiplication and a sum (`Product`).
"""

import dataclasses
import math

import numpy as np

from fcjax.audit.hlo.called import combiner, gemm_dimensions
from fcjax.audit.hlo.elementwise import FLOATS, Types
from fcjax.audit.hlo.graph import Computation, Instruction
from fcjax.audit.hlo.proto import Unauditable

_LARGE = 1 << 16  # numbers from which on a product waits for its sum
_COMBINERS = {
    "add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or,
}


def _end(sign: int):
    """The least number of a type, or the largest."""

    def of(dtype: np.dtype):
        if np.issubdtype(dtype, np.integer):
            return np.iinfo(dtype).min if sign < 0 else np.iinfo(dtype).max
        return sign * np.inf

    return of


_NEUTRAL = {  # what changes nothing
    np.add: lambda dtype: 0, np.multiply: lambda dtype: 1,
    np.maximum: _end(-1), np.minimum: _end(1),
}


def contract(a, b, left, right, left_batch=(), right_batch=()) -> np.ndarray:
    """Sum of a * b over the axes `left` of a and `right` of b.

    Returns:
      The batch axes, then what is left of a's, then what is left of b's.
    """
    free_a = [d for d in range(a.ndim) if d not in (*left, *left_batch)]
    free_b = [d for d in range(b.ndim) if d not in (*right, *right_batch)]
    batch, summed = ([a.shape[d] for d in dims] for dims in (left_batch, left))
    shape = [*batch, *(a.shape[d] for d in free_a), *(b.shape[d] for d in free_b)]
    count, inner = math.prod(batch), math.prod(summed)
    a = a.transpose(*left_batch, *free_a, *left).reshape(count, -1, inner)
    b = b.transpose(*right_batch, *right, *free_b).reshape(count, inner, -1)
    if b.size < _LARGE:
        return (a @ b).reshape(shape)
    # numpy's product of stacks is half as fast as one product after the other.
    return np.stack([x @ y for x, y in zip(a, b, strict=True)]).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Product:
    """a * b, not multiplied yet: two views of one shape."""

    a: np.ndarray
    b: np.ndarray

    def map(self, view) -> "Product | np.ndarray":
        """The same view of both; multiplied if `view` had to copy one of them."""
        a, b = view(self.a), view(self.b)
        kept = np.may_share_memory(a, self.a) and np.may_share_memory(b, self.b)
        return Product(a, b) if kept else view(self.value())

    def value(self) -> np.ndarray:
        return self.a * self.b

    def sum(self, over: tuple[int, ...]) -> np.ndarray:
        """Summed over some axes, as a matrix product of what does not repeat itself."""
        shape, over = self.a.shape, set(over)
        (a, of_a), (b, of_b) = map(_distinct, (self.a, self.b))
        repeats = math.prod(shape[d] for d in over - {*of_a, *of_b})
        a, left = _sum_axes(a, of_a, over - set(of_b))
        b, right = _sum_axes(b, of_b, over - set(of_a))
        both = [d for d in left if d in right]
        batch, summed = ([d for d in both if (d in over) == inside] for inside in (False, True))
        places = [
            [axes.index(d) for d in dims] for dims in (summed, batch) for axes in (left, right)
        ]
        y = contract(a, b, *places) * repeats
        order = [*batch, *(d for d in (*left, *right) if d not in both)]
        kept = [d for d in range(len(shape)) if d not in over]
        y = y.transpose(np.argsort(order)).reshape([shape[d] if d in order else 1 for d in kept])
        return np.broadcast_to(y, [shape[d] for d in kept])


def _distinct(x) -> tuple[np.ndarray, list[int]]:
    """The numbers of a view without those that repeat, and which of its axes are left."""
    axes = [d for d in range(x.ndim) if x.strides[d] and x.shape[d] > 1]
    return x[tuple(slice(None) if d in axes else 0 for d in range(x.ndim))], axes


def _sum_axes(x, axes: list[int], over: set[int]) -> tuple[np.ndarray, list[int]]:
    gone = tuple(n for n, d in enumerate(axes) if d in over)
    return (x.sum(axis=gone) if gone else x), [d for d in axes if d not in over]


def _multiply(i: Instruction, types: Types, a, b):
    """Waits for the sum if it is large and one of the two repeats itself."""
    large = math.prod(i.shape.dims) >= _LARGE and i.shape.dtype in types.real
    if large and any(0 in x.strides for x in (a, b)):
        return Product(a, b)
    return np.multiply(a, b)


def _dot(i: Instruction, types: Types, a, b):
    return _dot_with(i.name, types, i.shape.dtype, a, b, i["dot_dimension_numbers"])


def _dot_with(name: str, types: Types, dtype: str, a, b, numbers: dict) -> np.ndarray:
    if np.dtype(FLOATS["bf16"]) in (a.dtype, b.dtype):  # numpy has no matrix product of it
        a, b = a.astype(np.float32), b.astype(np.float32)
    left, right = numbers["lhs_contracting_dimensions"], numbers["rhs_contracting_dimensions"]
    batches = numbers["lhs_batch_dimensions"], numbers["rhs_batch_dimensions"]
    if len(left) != len(right) or len(batches[0]) != len(batches[1]):
        raise Unauditable(f"{name}: expected paired dimensions, got {numbers}")
    return contract(a, b, left, right, *batches).astype(types.of(dtype), copy=False)


def gemm(i: Instruction, types: Types, a, b):
    """A cuBLAS call: alpha a . b, with nothing added and nothing applied to it.

    Returns:
      The product and, where the call has one, an empty workspace.
    """
    config = i.config().get("gemm_backend_config", {})
    plain = {"alpha_imag": 0, "beta": 0, "epilogue": "DEFAULT"}
    got = {key: config.get(key, value) for key, value in plain.items()}
    numbers = gemm_dimensions(i)
    if got != plain or numbers is None:
        raise Unauditable(f"{i.name}: expected a plain product, got {config}")
    shapes = i.shape.elements or (i.shape,)
    y = config.get("alpha_real", 1) * _dot_with(i.name, types, shapes[0].dtype, a, b, numbers)
    workspace = [np.zeros(s.dims, types.of(s.dtype)) for s in shapes[1:]]
    return (y, *workspace) if i.shape.elements else y


def _combiner(computation: Computation) -> np.ufunc:
    """The function of two numbers that a reduction repeats."""
    opcode = combiner(computation)
    if opcode not in _COMBINERS:
        root = computation.root
        raise Unauditable(f"{computation.name}: expected {', '.join(_COMBINERS)}, got {root}")
    return _COMBINERS[opcode]


def _reduce(i: Instruction, types: Types, x, start):
    combine = _combiner(i.called[0])
    if isinstance(x, Product) and combine is np.add:
        return start + x.sum(i["dimensions"])
    x = x.value() if isinstance(x, Product) else x
    return combine(start, combine.reduce(x, axis=i["dimensions"], dtype=x.dtype))


def _reduce_window(i: Instruction, types: Types, x, start):
    """Windows without dilation or reversal; where one reaches over the edge, it has less in it."""
    combine, windows = _combiner(i.called[0]), i["window"]["dimensions"]
    plain = {"window_dilation": 1, "base_dilation": 1, "window_reversal": False}
    if any(w[key] != value for w in windows for key, value in plain.items()):
        raise Unauditable(f"{i.name}: expected plain windows, got {windows}")
    edges = [(w["padding_low"], w["padding_high"]) for w in windows]
    if any(map(any, edges)):
        if combine not in _NEUTRAL or min(map(min, edges)) < 0:
            raise Unauditable(f"{i.name}: expected windows that do not cut, got {windows}")
        x = np.pad(x, edges, constant_values=_NEUTRAL[combine](x.dtype))
    views = np.lib.stride_tricks.sliding_window_view(x, [w["size"] for w in windows])
    views = views[tuple(slice(None, None, w["stride"]) for w in windows)]
    inner = tuple(range(x.ndim, 2 * x.ndim))
    return combine(start, combine.reduce(views, axis=inner, dtype=x.dtype))


SUMS = {"dot": _dot, "multiply": _multiply, "reduce": _reduce, "reduce-window": _reduce_window}
