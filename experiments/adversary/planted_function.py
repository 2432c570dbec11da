"""Planted violations of function: what crosses has the right shape, order and ancestors, and is
another value.

PLANTED_FUNCTION maps a name to (where the identity test finds it, options of `programs.interval`):
the beginning of a violation's text, or its code.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from experiments.adversary.programs import SAMPLED, TINY, WHOLE, replace
from fcjax.mesh import AXIS
from fcjax.model import functions
from fcjax.sharded import ops, sampling
from fcjax.sharded.sampling import Sampling

N = 2
_norm, _swiglu, _layer, _embed = ops.rms_norm, functions.swiglu, ops.layer, ops.embed
_attention, _scatter, _head = functions.attention, ops.scatter, ops.head
_choose, _threshold = Sampling.choose, sampling._threshold


def _normed(fn):
    """A patch: `fn(x)` of every normed shard x[B, T, D_n]."""
    return [replace("rms_norm", lambda *args: fn(_norm(*args)))]


def _operand(fn):
    """A patch: `fn(y)` of every operand of a scatter."""
    return [replace("scatter", lambda y, axis: _scatter(fn(y), axis))]


def _one(x, n, axis=-1):
    """Coordinate n alone."""
    axis %= x.ndim
    return jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, axis) == n, x, 0)


def rows_as_a_channel(x):
    """Row 1 carries row 0 with all but one coordinate masked."""
    return x.at[1].set(_one(x[0], 3))


def tokens_as_a_channel(x):
    """Position t carries the one before it, masked."""
    return x.at[:, 1:].set(_one(x[:, :-1], 3))


def only_node_0(y):
    return jnp.where(lax.axis_index(AXIS) == 0, y, 0)


def low_term(x):
    """A second number, too small to look like more than rounding."""
    return x + 1e-7 * x[..., ::-1]


def low_bits(x):
    """The low bits of each number are the high ones of another."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    other = lax.bitcast_convert_type(x[..., ::-1], jnp.uint32)
    return lax.bitcast_convert_type((bits & ~jnp.uint32(255)) | (other >> 24), jnp.float32)


def by_position(qkv, w, cache, pos_B, cfg):
    """Of each head one coordinate, chosen by the position."""
    o, cache = _attention(qkv, w, cache, pos_B, cfg)
    own = lax.broadcasted_iota(jnp.int32, o.shape, 4) == (pos_B % cfg.H)[:, None, None, None, None]
    return jnp.where(own, o, 0), cache


def weight_as_initial_value(o_BTKnGH, w):
    """A reduction that starts from an entry of the weight."""
    products = o_BTKnGH[..., None] * w["out"][None, None]
    return _scatter(lax.reduce(products, w["out"][0, 0, 0, 0], lax.add, (2, 3, 4)), 2)


def keeping(make):
    """A patch: `make(x_BTDn)` [B, M] is kept in the last slot of the keys, where that is free."""

    def layer(x, w, cache, pos_B, cfg):
        x, (k, v) = _layer(x, w, cache, pos_B, cfg)
        kept = jnp.resize(make(x).reshape(len(x), -1)[:, : cfg.H], (len(x), 1, cfg.H))
        free = (pos_B < k.shape[2] - 1)[:, None, None]
        return x, (k.at[:, :, -1].set(jnp.where(free, kept, k[:, :, -1])), v)

    return [replace("layer", layer)]


_INVERSE = np.random.default_rng(0).standard_normal((TINY.D // N, 2 * TINY.F)).astype(np.float32)


def reconstructed(x):
    """A constant as large as a block, applied to the node's own shard."""
    return jnp.einsum("btd,df->bf", x, _INVERSE)


def computed_inverse(x):
    """The same with a matrix that is computed, so that no constant is large."""
    d, h = (lax.broadcasted_iota(jnp.float32, (x.shape[2], TINY.H), n) for n in (0, 1))
    return jnp.einsum("btd,dh->bh", x, jnp.sin(d * h + d))


def best_by(fn):
    """A patch of the greedy choice: `fn(logits, ids)` is what each node holds its best to be."""

    def choose(self, logits, split, *_):
        ids = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
        ids = ids + lax.axis_index(AXIS) * split.block
        logits = jnp.where(ids < split.size, logits, -jnp.inf)
        best = lax.pmax(jnp.max(fn(logits, ids), axis=1), AXIS)
        first = jnp.where(logits == best[:, None], ids, split.size)
        return lax.pmin(jnp.min(first, axis=1), AXIS)

    return [replace("choose", choose, Sampling)]


def another_logit(logits, ids):
    return jnp.where(ids == 3, logits, -jnp.inf)


def counting_one(keys, weights, target):
    """The rounds return the bits of one logit in the place of counts."""
    first = lax.broadcasted_iota(jnp.int32, keys.shape, 1) == 0
    bits = (keys >> 8).astype(jnp.int32)
    return _threshold(keys, jnp.where(first, bits, 0).astype(weights.dtype), target)


def other_rows(tokens, table):
    return _embed(tokens[::-1], table)


def other_row_of_the_head(x, table):
    return _head(x[::-1], table)


_ROWS, _WHOLE = {"batch": 3}, WHOLE | {"layers": 1, "batch": 3}
PLANTED_FUNCTION = {
    "rows as a channel": ("layers.0.qkv", {"patches": _normed(rows_as_a_channel), **_ROWS}),
    "tokens as a channel": ("layers.0.qkv", {"patches": _normed(tokens_as_a_channel), "tokens": 4}),
    "mask: only node 0": ("layers.0.qkv", {"patches": _operand(only_node_0)}),
    "mask: one coordinate": ("layers.0.qkv", {"patches": _normed(lambda x: _one(x, 5))}),
    "mask: one coordinate by position": (
        "layers.0.out", {"patches": [replace("attention", by_position, functions)], **_ROWS},
    ),
    "low term": ("layers.0.qkv", {"patches": _normed(low_term)}),
    "low bits": ("layers.0.qkv", {"patches": _normed(low_bits)}),
    "low bits of what is sent": ("layers.0.qkv", {"patches": _operand(low_bits)}),
    "scaled by 1 + 1e-4": ("layers.0.qkv", {"patches": _normed(lambda x: x * (1 + 1e-4))}),
    "weight as an initial value": (
        "layers.0.out", {"patches": [replace("out_proj", weight_as_initial_value)]},
    ),
    "kept: by a large constant": ("large-constant", {"patches": keeping(reconstructed)}),
    "kept: by a computed matrix": (
        "result layers.0.cache_k", {"patches": keeping(computed_inverse)},
    ),
    "kept: the node's own shard": ("result layers.0.cache_k", {"patches": keeping(lambda x: x)}),
    "exchange: another logit": ("best value", {"patches": best_by(another_logit), **_WHOLE}),
    "exchange: a logit halved": ("best value", {"patches": best_by(lambda x, _: x / 2), **_WHOLE}),
    "exchange: counts are a logit's bits": (
        "top-k count",
        {"patches": [replace("_threshold", counting_one, sampling)], **_WHOLE, "sampling": SAMPLED},
    ),
    "embedding of other rows": (
        "layers.0.input_norm statistic", {"patches": [replace("embed", other_rows)], **_WHOLE},
    ),
    "head of other rows": (
        "embed", {"patches": [replace("head", other_row_of_the_head)], **_WHOLE},
    ),
    "another activation": (
        "layers.0.down",
        {"patches": [replace("swiglu", lambda x: jax.nn.gelu(x[:, :, 0]) * x[:, :, 1], functions)]},
    ),
}
