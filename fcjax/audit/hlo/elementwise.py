"""Operators of HLO that work number by number, in numpy.

Each takes its instruction, the `Types` in use and its operands, which have one shape.
"""

import dataclasses

import ml_dtypes
import numpy as np

from fcjax.audit.hlo.graph import Instruction
from fcjax.audit.hlo.proto import Unauditable

FLOATS = {
    "f64": np.float64, "f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16,
}
_INTS = {
    "pred": np.bool_, "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
}


@dataclasses.dataclass(frozen=True)
class Types:
    """Which numpy type stands for an HLO type.

    Attributes:
      real: float types that are computed with as real numbers, that is in float64. A conversion
        between two of them changes nothing. All others round as they do in the program.
    """

    real: frozenset[str] = frozenset({"f32"})

    def of(self, dtype: str) -> np.dtype:
        """Unauditable for a type that is not known."""
        if dtype in FLOATS:
            return np.dtype(np.float64 if dtype in self.real else FLOATS[dtype])
        if dtype not in _INTS:
            known = ", ".join((*FLOATS, *_INTS))
            raise Unauditable(f"type: expected one of {known}, got {dtype}")
        return np.dtype(_INTS[dtype])


def true_type(dtype: str) -> np.dtype:
    """The type in which the program itself holds such numbers."""
    return Types(real=frozenset()).of(dtype)


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def _ufunc(f):
    return lambda i, types, *operands: f(*operands)


def _logistic(x):
    return 1 / (1 + np.exp(-x))


def _divide(i: Instruction, types, a, b):
    if is_float(i.shape.dtype):
        return a / b
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    # Towards zero; a division by zero gives all ones.
    quotient = (a - np.fmod(a, safe)) // safe
    return np.where(b == 0, np.array(-1).astype(a.dtype), quotient).astype(a.dtype)


def _remainder(i: Instruction, types, a, b):
    if is_float(i.shape.dtype):
        return np.fmod(a, b)
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    return np.where(b == 0, a, np.fmod(a, safe)).astype(a.dtype)


def _shift(shift):
    """A shift by the width of the type or more leaves zeros, or copies of the sign."""

    def run(i: Instruction, types, a, by):
        bits = a.dtype.itemsize * 8
        unsigned = np.dtype(f"u{a.dtype.itemsize}")
        count = by.astype(unsigned)
        far, count = count >= bits, np.minimum(count, bits - 1)
        return shift(a, unsigned, count, far).astype(a.dtype)

    return run


def _left(a, unsigned, count, far):
    return np.where(far, 0, a.astype(unsigned) << count)


def _right_logical(a, unsigned, count, far):
    return np.where(far, 0, a.astype(unsigned) >> count)


def _right_arithmetic(a, unsigned, count, far):
    signed = np.dtype(f"i{a.dtype.itemsize}")
    return a.astype(signed) >> count.astype(signed)  # by width - 1 at most: copies of the sign


_DIRECTIONS = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal,
    "GT": np.greater, "GE": np.greater_equal,
}


def _compare(i: Instruction, types, a, b):
    order = f"{i['comparison_type']} {i['comparison_order']}".upper()
    total = "TOTAL" in order.replace("PARTIAL", "")
    if total and is_float(i.operands[0].shape.dtype):  # of integers it is the ordinary order
        raise Unauditable(f"{i.name}: expected an ordinary comparison, got {order.strip()}")
    if i["comparison_direction"] not in _DIRECTIONS:
        raise Unauditable(f"{i.name}: expected a comparison, got {i['comparison_direction']!r}")
    return _DIRECTIONS[i["comparison_direction"]](a, b)


def _not(i: Instruction, types, a):
    return np.logical_not(a) if a.dtype == bool else np.invert(a)


def convert(i: Instruction, types: Types, a):
    """To another type. Floats become integers towards zero, at most the type's ends, NaN 0."""
    source, target = i.operands[0].shape.dtype, i.shape.dtype
    to = types.of(target)
    if {source, target} <= types.real:
        return a
    if not is_float(source) or is_float(target) or target == "pred":
        return a.astype(to)
    ends = np.iinfo(to)
    x = np.trunc(np.nan_to_num(np.asarray(a, np.float64), nan=0.0))
    low, high = x <= ends.min, x >= ends.max
    return np.where(low, ends.min, np.where(high, ends.max, np.where(low | high, 0, x).astype(to)))


def bitcast_convert(i: Instruction, types: Types, a):
    """The same bits as another type of the same width: the program's own bits, rounded once."""
    source, target = (true_type(s.dtype) for s in (i.operands[0].shape, i.shape))
    if source.itemsize != target.itemsize:
        raise Unauditable(f"{i.name}: expected types of one width, got {source} and {target}")
    return np.asarray(a).astype(source).view(target).astype(types.of(i.shape.dtype))


def _reduce_precision(i: Instruction, types, a):
    """Rounded to so many bits of mantissa, ties to even; the exponents must be those of f32."""
    if i["exponent_bits"] != 8 or i.shape.dtype == "f16":
        raise Unauditable(f"{i.name}: expected 8 bits of exponent, got {i['exponent_bits']}")
    mantissa, exponent = np.frexp(np.asarray(a, np.float64))
    unit = 2.0 ** (i["mantissa_bits"] + 1)
    rounded = np.ldexp(np.rint(mantissa * unit) / unit, exponent)
    return np.where(np.isfinite(a), rounded, a).astype(types.of(i.shape.dtype))


def _clamp(i: Instruction, types, low, a, high):
    return np.minimum(np.maximum(a, low), high)


def _round_away(a):
    return np.trunc(a + np.copysign(0.5, a))


ELEMENTWISE = {
    "abs": _ufunc(np.abs),
    "add": _ufunc(np.add),
    "and": _ufunc(np.bitwise_and),
    "atan2": _ufunc(np.arctan2),
    "bitcast-convert": bitcast_convert,
    "cbrt": _ufunc(np.cbrt),
    "ceil": _ufunc(np.ceil),
    "clamp": _clamp,
    "compare": _compare,
    "convert": convert,
    "cosine": _ufunc(np.cos),
    "divide": _divide,
    "exponential": _ufunc(np.exp),
    "exponential-minus-one": _ufunc(np.expm1),
    "floor": _ufunc(np.floor),
    "is-finite": _ufunc(np.isfinite),
    "log": _ufunc(np.log),
    "log-plus-one": _ufunc(np.log1p),
    "logistic": _ufunc(_logistic),
    "maximum": _ufunc(np.maximum),
    "minimum": _ufunc(np.minimum),
    "multiply": _ufunc(np.multiply),
    "negate": _ufunc(np.negative),
    "not": _not,
    "or": _ufunc(np.bitwise_or),
    "power": _ufunc(np.power),
    "reduce-precision": _reduce_precision,
    "remainder": _remainder,
    "round-nearest-afz": _ufunc(_round_away),
    "round-nearest-even": _ufunc(np.rint),
    "rsqrt": _ufunc(lambda x: 1 / np.sqrt(x)),
    "select": _ufunc(np.where),
    "shift-left": _shift(_left),
    "shift-right-arithmetic": _shift(_right_arithmetic),
    "shift-right-logical": _shift(_right_logical),
    "sign": _ufunc(np.sign),
    "sine": _ufunc(np.sin),
    "sqrt": _ufunc(np.sqrt),
    "subtract": _ufunc(np.subtract),
    "tan": _ufunc(np.tan),
    "tanh": _ufunc(np.tanh),
    "xor": _ufunc(np.bitwise_xor),
}
