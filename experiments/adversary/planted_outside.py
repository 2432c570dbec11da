"""Planted violations beside the values: whose ids a group counts, types, whose code runs where.

PLANTED_OUTSIDE maps a name to (reason code, options of `programs.interval`), as `planted.PLANTED`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib import xla_client
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from experiments.adversary.planted import N, _node, _padded, out_with
from experiments.adversary.programs import leak, replace
from fcjax.mesh import AXIS
from fcjax.sharded import ops

_layer, _norm, _scatter = ops.layer, ops.rms_norm, ops.scatter

# Collectives with a channel and without global ids: {{0}} is the only replica, which stands for all
# its partitions. JAX has no word for that, so these are primitives of their own.


def _primitive(name, shape_of, lower):
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x, **p: x.update(shape=shape_of(x.shape, **p)))
    mlir.register_lowering(primitive, lower)
    return primitive


def _attributes():
    groups = ir.DenseIntElementsAttr.get(np.zeros((1, 1), np.int64))
    return groups, stablehlo.ChannelHandle.get(99, mlir.DEVICE_TO_DEVICE_TYPE)


def _result(context, x):
    return ir.RankedTensorType.get(context.avals_out[0].shape, x.type.element_type)


def _lower_gather(context, x, *, axis):
    groups, channel = _attributes()
    out = _result(context, x)
    dim = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), axis)
    return stablehlo.AllGatherOp([out], [x], dim, groups, channel_handle=channel).results


def _lower_sum(context, x):
    groups, channel = _attributes()
    out = _result(context, x)
    op = stablehlo.AllReduceOp([out], [x], groups, channel_handle=channel)
    scalar = ir.RankedTensorType.get([], x.type.element_type)
    block = op.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.return_([stablehlo.add(*block.arguments)])
    return op.results


_gather_p = _primitive(
    "gather_of_replicas",
    lambda s, axis: (*s[:axis], N * s[axis], *s[axis + 1 :]),
    _lower_gather,
)
_sum_p = _primitive("sum_of_replicas", lambda s: s, _lower_sum)
_CALL = "__cub$DeviceRadixSort"
_call_p = _primitive("call_by_name", lambda s: s, jax.ffi.ffi_lowering(_CALL))


def gather(x, axis=2):
    return _gather_p.bind(x, axis=axis)


def gathered_caches(x_BTDn, w, cache, *rest):
    x_BTDn, (k, v) = _layer(x_BTDn, w, cache, *rest)
    return x_BTDn, (k + 0.5 * jnp.roll(gather(k, 1), 1, 1)[:, : k.shape[1]], v)


def gathered_weight(o_BTKnGH, w):
    own = lax.dynamic_slice_in_dim(jnp.roll(gather(w["out"], 0), 1, 0), _node(), 1, 0)
    return _scatter(jnp.einsum("btkgh,kghd->btd", o_BTKnGH, own), 2)


# Types.


def _wide(fn):
    """The scatter of what `fn` makes of the partial sums, in a type with room for two numbers."""

    def scatter(y_U):
        with jax.enable_x64(True):
            return _scatter(fn(y_U), 2).real.astype(y_U.dtype)

    return scatter


def _low_bits(y_U):
    return y_U.astype(jnp.float64) + 1e-9 * jnp.flip(y_U, 2).astype(jnp.float64)


def f64_statistic(x_BTDn, w, D, eps):
    with jax.enable_x64(True):
        squares = jnp.sum(x_BTDn.astype(jnp.float64) ** 2, axis=-1, keepdims=True)
        mean = (lax.psum(squares, AXIS) / D).astype(jnp.float32)
    return x_BTDn * lax.rsqrt(mean + eps) * w[None, None]


# Whose code, and where.


def registered_call(x):
    """A user's code under the name of a library call that XLA's GPU backend knows."""
    handler = xla_client.custom_call_targets("cpu")["xla_ffi_python_cpu_callback"]
    jax.ffi.register_ffi_target(_CALL, handler, platform="cpu")
    return _padded(_call_p.bind(x))


def with_a_note(x):
    return _padded(set_xla_metadata(jnp.sin(x), _xla_stream_annotation="1"))


# What a sum starts from.


def sum_from_a_weight(o_BTKnGH, w):
    products = o_BTKnGH[..., None] * w["out"][None, None]
    y_U = lax.reduce(products, w["out"][0, 0, 0, 0], lax.add, (2, 3, 4))
    return _scatter(y_U, 2)


def statistic_from_a_weight(x_BTDn, w, D, eps):
    start = lax.reduce_max(w, (0,))
    squares = lax.reduce(x_BTDn**2, start, lax.add, (2,))[..., None]
    return x_BTDn * lax.rsqrt(lax.psum(squares, AXIS) / D + eps) * w[None, None]


def windows_from_a_weight(x_BTDn, w, D, eps):
    n = x_BTDn.shape[2]
    squares = lax.reduce_window(x_BTDn**2, w[0], lax.add, (1, 1, n), (1, 1, n), "VALID")
    return x_BTDn * lax.rsqrt(lax.psum(squares, AXIS) / D + eps) * w[None, None]


def _out(fn):
    return {"patches": [replace("out_proj", fn)]}


def _norms(fn):
    return {"patches": [replace("rms_norm", fn)]}


PLANTED_OUTSIDE = {
    "replicas: all-gather": ("early-gather", {"patches": [leak(gather)]}),
    "replicas: all-reduce of padded shards": (
        "hidden-gather", {"patches": [leak(lambda x: _sum_p.bind(_padded(x)))]},
    ),
    "replicas: caches gathered": (
        "early-gather", {"patches": [replace("layer", gathered_caches)]},
    ),
    "replicas: weight gathered": ("weight-on-wire", _out(gathered_weight)),
    "types: a scatter in f64": (
        "wrong-type", {"patches": [out_with(_wide(lambda y: y.astype(jnp.float64)))]},
    ),
    "types: a second number in the low bits": (
        "wrong-type", {"patches": [out_with(_wide(_low_bits))]},
    ),
    "types: a complex scatter": (
        "wrong-type", {"patches": [out_with(_wide(lambda y: lax.complex(y, jnp.flip(y, 2))))]},
    ),
    "types: a statistic in f64": ("wrong-type", _norms(f64_statistic)),
    "code: registered under a library's name": (
        "custom-call", {"patches": [leak(registered_call)]},
    ),
    "place: an unknown note": ("host-transfer", {"patches": [leak(with_a_note)]}),
    "start: a sum from a weight": ("hidden-gather", _out(sum_from_a_weight)),
    "start: a statistic from a weight": ("not-a-statistic", _norms(statistic_from_a_weight)),
    "start: a window from a weight": ("not-a-statistic", _norms(windows_from_a_weight)),
}
