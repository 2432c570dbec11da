"""Planted violations: each is the real interval with one thing in it that must be found.

PLANTED maps a name to (reason code, options of `programs.interval`).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from experiments.adversary.programs import leak, replace
from fcjax.mesh import AXIS
from fcjax.sharded import ops

N = 2  # nodes in most of them
_scatter, _norm, _qkv = ops.scatter, ops.rms_norm, ops.qkv_proj


def _node():
    return lax.axis_index(AXIS)


def _padded(x, fill=0):
    """[.., D_n] -> [.., D], the node's shard at its place and `fill` elsewhere."""
    full = lax.pcast(jnp.full((*x.shape[:2], N * x.shape[2]), fill, x.dtype), AXIS, to="varying")
    return lax.dynamic_update_slice_in_dim(full, x, _node() * x.shape[2], 2)


def _one_hot(x):
    """[D_n, D]: the node's rows of the identity."""
    n = x.shape[2]
    return (jnp.arange(N * n)[None] == jnp.arange(n)[:, None] + _node() * n).astype(x.dtype)


# Ways to rebuild the complete residual.


def gather(x):
    return lax.all_gather(x, AXIS, axis=2, tiled=True)


def gather_invariant(x):
    return lax.all_gather(x, AXIS, axis=2, tiled=True, to="invarying")


def gather_in_chunks(x):
    return jnp.concatenate([gather(c) for c in jnp.array_split(x, 4, axis=2)], axis=2)


def gather_bits(x):
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return lax.bitcast_convert_type(gather(bits), jnp.float32)


def gather_bf16(x):
    return gather(x.astype(jnp.bfloat16)).astype(x.dtype)


def psum_padded(x):
    return lax.psum(_padded(x), AXIS)


def psum_masked(x):
    n = x.shape[2]
    mine = jnp.arange(N * n) // n == _node()
    return lax.psum(jnp.where(mine[None, None], jnp.tile(x, (1, 1, N)), 0), AXIS)


def psum_one_hot(x):
    return lax.psum(jnp.einsum("btd,de->bte", x, _one_hot(x)), AXIS)


def pmax_padded(x):
    return lax.pmax(_padded(x, -3e38), AXIS)


def psum_each_coordinate(x):
    zero = jnp.zeros((), x.dtype)
    out = []
    for node in range(N):
        for j in range(x.shape[2]):
            out.append(lax.psum(jnp.where(_node() == node, x[:, :, j], zero), AXIS))
    return jnp.stack(out, axis=2)


def psum_bits(x):
    bits = lax.bitcast_convert_type(_padded(x), jnp.int32)
    return lax.bitcast_convert_type(lax.psum(bits, AXIS), jnp.float32)


def scatter_rows(x):
    """A reduce-scatter whose result is the complete state: every node's row holds all of it."""
    rows = jnp.broadcast_to(_padded(x)[None], (N, *x.shape[:2], N * x.shape[2]))
    return lax.psum_scatter(rows, AXIS, scatter_dimension=0, tiled=True)[0]


def scatter_identity(x):
    eye = jnp.asarray(np.eye(x.shape[2]), x.dtype)
    y = jnp.einsum("btd,de->bte", x, eye)
    rows = jnp.broadcast_to(_padded(y)[None], (N, *x.shape[:2], N * x.shape[2]))
    return lax.psum_scatter(rows, AXIS, scatter_dimension=0, tiled=True)[0]


def ring(x):
    others = [x]
    for _ in range(N - 1):
        others.append(lax.ppermute(others[-1], AXIS, [(i, (i + 1) % N) for i in range(N)]))
    return jnp.concatenate(others, axis=2)


def all_to_all(x):
    copies = jnp.broadcast_to(x[None], (N, *x.shape))
    got = lax.all_to_all(copies, AXIS, split_axis=0, concat_axis=0, tiled=True)
    return jnp.concatenate(list(got), axis=2)


def squares(x):
    return lax.psum(_padded(x) ** 2, AXIS)


def host(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return _padded(jax.pure_callback(lambda v: np.asarray(v), shape, x))


def printing(x):
    jax.debug.callback(lambda v: None, x)
    return _padded(x)


def gather_in_loop(x):
    def body(_, y):
        return y + gather(x)

    return lax.fori_loop(0, 5, body, _padded(x))


def gather_in_branch(x):
    return lax.cond(jnp.sum(x) > 0, lambda: gather(x), lambda: _padded(x))


def linear_statistic(x):
    return _padded(x) + lax.psum(jnp.sum(x, axis=-1, keepdims=True), AXIS)


def shifted_statistic(x):
    return _padded(x) + lax.psum(jnp.sum((x + 1) ** 2, axis=-1, keepdims=True), AXIS)


def partial_statistic(x):
    return _padded(x) + lax.psum(jnp.sum(x[:, :, 1:] ** 2, axis=-1, keepdims=True), AXIS)


def second_statistic(x):
    return _padded(x) + lax.psum(jnp.sum((x * 2) ** 2, axis=-1, keepdims=True), AXIS)


# Changes to one operator.


def out_with(scatter):
    """The output projection with another way to hand out its partial sums."""

    def out_proj(o_BTKnGH, w):
        return scatter(jnp.einsum("btkgh,kghd->btd", o_BTKnGH, w["out"]))

    return replace("out_proj", out_proj)


def psum_and_slice(y_U):
    n = y_U.shape[2] // N
    return lax.dynamic_slice_in_dim(lax.psum(y_U, AXIS), _node() * n, n, 2)


def drop_scatter(y_U):
    n = y_U.shape[2] // N
    return lax.dynamic_slice_in_dim(y_U, _node() * n, n, 2)


def flipped(y_U):
    return _scatter(y_U[:, :, ::-1], 2)


def swapped_owners(y_U):
    return _scatter(jnp.roll(y_U, y_U.shape[2] // N, axis=2), 2)


def strided_owners(y_U):
    B, T, D = y_U.shape
    return _scatter(y_U.reshape(B, T, D // N, N).swapaxes(2, 3).reshape(B, T, D), 2)


def gather_after(y_U):
    return lax.dynamic_slice_in_dim(gather(_scatter(y_U, 2)), 0, y_U.shape[2] // N, 2)


def scaled_twice(y_U):
    return _scatter(y_U + 1.0, 2)


def over_batch(y_U):
    """With batch = N the count of elements is right, and each node has whole rows."""
    rows = lax.psum_scatter(y_U, AXIS, scatter_dimension=0, tiled=True)
    return jnp.reshape(rows, (N, 1, -1)) * jnp.ones((N, 1, 1), rows.dtype)


def widened(y_U):
    both = jnp.concatenate([y_U, y_U], axis=2)
    return _scatter(both, 2)[:, :, : y_U.shape[2] // N]


def groups_of_one(y_U):
    out = lax.psum_scatter(y_U, AXIS, scatter_dimension=2, tiled=True, axis_index_groups=[[0], [1]])
    return out[:, :, : y_U.shape[2] // N]


def twice(y_U):
    return _scatter(y_U, 2) + lax.psum_scatter(y_U * 3.0, AXIS, scatter_dimension=2, tiled=True)


def residual_before_scatter(o_BTKnGH, w):
    y = jnp.einsum("btkgh,kghd->btd", o_BTKnGH, w["out"])
    return _scatter(y + _padded(o_BTKnGH.reshape(*y.shape[:2], -1)[:, :, : y.shape[2] // N]), 2)


def scaled_by_weight(o_BTKnGH, w):
    """No sum: one coordinate of the state times one row of the weight."""
    row = w["out"][:1, :1, :1]
    return _scatter(jnp.einsum("btkgh,kghd->btd", o_BTKnGH[:, :, :1, :1, :1], row), 2)


def computed_weight(o_BTKnGH, w):
    mixed = w["out"] * (jnp.arange(w["out"].shape[3]) % 2)[None, None, None].astype(w["out"].dtype)
    return _scatter(jnp.einsum("btkgh,kghd->btd", o_BTKnGH, mixed), 2)


def gathered_weight(o_BTKnGH, w):
    whole = lax.all_gather(w["out"], AXIS, axis=0, tiled=True)
    own = lax.dynamic_slice_in_dim(jnp.roll(whole, 1, 0), _node() * 1, 1, 0)
    return _scatter(jnp.einsum("btkgh,kghd->btd", o_BTKnGH, own), 2)


def bias_before_scatter(x_BTDn, w, D, eps):
    y = jnp.einsum("btd,dkch->btkch", _norm(x_BTDn, w["input_norm"], D, eps), w["qkv"])
    bias = jnp.tile(w["qkv_bias"], (N, 1, 1))
    return _scatter(y + bias[None, None], 2)


def split_heads(x_BTDn, w, D, eps):
    """The scatter runs over the head dimension: half a head each."""
    y = jnp.einsum("btd,dkch->btkch", _norm(x_BTDn, w["input_norm"], D, eps), w["qkv"])
    halves = lax.psum_scatter(y, AXIS, scatter_dimension=4, tiled=True)
    return halves.reshape(*y.shape[:2], 1, *y.shape[3:]) + w["qkv_bias"][None, None]


def gathered_qkv(x_BTDn, w, D, eps):
    y = _qkv(x_BTDn, w, D, eps)
    return y + 0.5 * jnp.roll(lax.all_gather(y, AXIS, axis=2, tiled=True), 1, 2)[:, :, :1]


def statistic_of_normed(x_BTDn, w, D, eps):
    y = _norm(x_BTDn, w, D, eps)
    return y + lax.psum(jnp.sum(y**2, axis=-1, keepdims=True), AXIS)


def contract_batch(x_BTDn, w, D, eps):
    """The state's batch axis in the place of its coordinates: B = D / N rows of one coordinate."""
    y = jnp.einsum("dtb,dkch->btkch", _norm(x_BTDn, w["input_norm"], D, eps), w["qkv"])
    return _scatter(y, 2) + w["qkv_bias"][None, None]


LEAKS = {
    "all-gather": ("early-gather", gather),
    "all-gather, invariant": ("early-gather", gather_invariant),
    "all-gather in chunks": ("early-gather", gather_in_chunks),
    "all-gather of bits": ("early-gather", gather_bits),
    "all-gather in bf16": ("early-gather", gather_bf16),
    "all-reduce of padded shards": ("hidden-gather", psum_padded),
    "all-reduce of masked copies": ("hidden-gather", psum_masked),
    "all-reduce of a one-hot contraction": ("not-a-weight", psum_one_hot),
    "maximum of padded shards": ("wrong-reduction", pmax_padded),
    "one all-reduce for each coordinate": ("not-a-statistic", psum_each_coordinate),
    "all-reduce of bits": ("hidden-gather", psum_bits),
    "reduce-scatter to complete rows": ("hidden-gather", scatter_rows),
    "reduce-scatter of an identity contraction": ("not-a-weight", scatter_identity),
    "ring of permutes": ("unplanned-collective", ring),
    "all-to-all": ("unplanned-collective", all_to_all),
    "squares of every coordinate": ("hidden-gather", squares),
    "host callback": ("custom-call", host),
    "debug callback": ("custom-call", printing),
    "all-gather in a loop": ("early-gather", gather_in_loop),
    "all-gather in a branch": ("control-flow", gather_in_branch),
    "sum of coordinates": ("not-a-statistic", linear_statistic),
    "squares of shifted state": ("not-a-statistic", shifted_statistic),
    "squares of part of a shard": ("not-a-statistic", partial_statistic),
    "squares of scaled state": ("not-a-statistic", second_statistic),
}

PLANTED = {name: (code, {"patches": [leak(fn)]}) for name, (code, fn) in LEAKS.items()} | {
    "out: all-reduce and slice": ("all-reduce-of-state", {"patches": [out_with(psum_and_slice)]}),
    "out: no scatter": ("missing-collective", {"patches": [out_with(drop_scatter)]}),
    "out: reversed coordinates": ("hidden-gather", {"patches": [out_with(flipped)]}),
    "out: two owners swapped": ("hidden-gather", {"patches": [out_with(swapped_owners)]}),
    "out: strided owners": ("wrong-owner", {"patches": [out_with(strided_owners)]}),
    "out: gathered again": ("early-gather", {"patches": [out_with(gather_after)]}),
    "out: shifted before the scatter": ("hidden-gather", {"patches": [out_with(scaled_twice)]}),
    "out: scattered over the batch": (
        "wrong-axis", {"patches": [out_with(over_batch)], "batch": N},
    ),
    "out: sent twice over": ("hidden-gather", {"patches": [out_with(widened)]}),
    "out: groups of one node": ("missing-collective", {"patches": [out_with(groups_of_one)]}),
    "out: a second scatter": ("unplanned-collective", {"patches": [out_with(twice)]}),
    "out: residual before the scatter": (
        "hidden-gather", {"patches": [replace("out_proj", residual_before_scatter)]},
    ),
    "out: one row of the weight": (
        "hidden-gather", {"patches": [replace("out_proj", scaled_by_weight)]},
    ),
    "out: masked weight": ("not-a-weight", {"patches": [replace("out_proj", computed_weight)]}),
    "out: weight gathered": ("weight-on-wire", {"patches": [replace("out_proj", gathered_weight)]}),
    "qkv: bias before the scatter": (
        "hidden-gather", {"patches": [replace("qkv_proj", bias_before_scatter)]},
    ),
    "qkv: heads split": ("wrong-axis", {"patches": [replace("qkv_proj", split_heads)]}),
    "qkv: gathered": ("early-gather", {"patches": [replace("qkv_proj", gathered_qkv)]}),
    "qkv: batch axis contracted": (
        "wrong-axis", {"patches": [replace("qkv_proj", contract_batch)], "batch": 19},
    ),
    "norm: statistic of its output": (
        "not-a-statistic", {"patches": [replace("rms_norm", statistic_of_normed)]},
    ),
}
