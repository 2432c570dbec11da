"""Operators on shards: what one node runs on its own coordinates, inside shard_map.

Notation of the docstrings (scaling book): ``A[I, J_n]`` is split over the nodes along J, ``{U_n}``
marks a partial sum that is still to be reduced over them.
"""

import jax
import jax.numpy as jnp

from fcjax.mesh import AXIS
from fcjax.model import functions
from fcjax.sharded.ownership import Split


def scatter(y_U, axis: int):
    """y[.., M]{U_n} -> ReduceScatter -> y[.., M_n]: node q receives shard q of the sum."""
    return jax.lax.psum_scatter(y_U, AXIS, scatter_dimension=axis, tiled=True)


def rms_norm(x_BTDn, weight_Dn, D: int, eps: float):
    """x[B, T, D_n] -> x[B, T, D_n], in the order of `functions.rms_norm`.

    The one thing that the nodes share is the declared statistic: the sum of squares, f32[B, T, 1].
    It is divided by the true D; padding is zero and adds nothing to it.
    """
    x32_BTDn = x_BTDn.astype(jnp.float32)
    square_BT1_U = jnp.sum(jnp.square(x32_BTDn), axis=-1, keepdims=True)
    mean_BT1 = jax.lax.psum(square_BT1_U, AXIS) / D
    normed_BTDn = (x32_BTDn * jax.lax.rsqrt(mean_BT1 + eps)).astype(x_BTDn.dtype)
    return normed_BTDn * weight_Dn[None, None]


def qkv_proj(x_BTDn, w, D: int, eps: float):
    """x[B,T,D_n] . w[D_n,K,C,H] -> [B,T,K,C,H]{U_n} -> ReduceScatter -> [B,T,K_n,C,H].

    A bias is added after the scatter, once, by the owner of the group.
    """
    normed_BTDn = rms_norm(x_BTDn, w["input_norm"], D, eps)
    qkv_BTKCH_U = functions.project(normed_BTDn, w["qkv"])
    return functions.with_bias(scatter(qkv_BTKCH_U, 2), w)


def out_proj(o_BTKnGH, w):
    """o[B,T,K_n,G,H] . w[K_n,G,H,D] -> [B,T,D]{U_n} -> ReduceScatter -> [B,T,D_n]."""
    out_BTD_U = functions.out_proj(o_BTKnGH, w["out"])
    return scatter(out_BTD_U, 2)


def gate_up_proj(x_BTDn, w, D: int, eps: float):
    """x[B,T,D_n] . w[D_n,2,F] -> [B,T,2,F]{U_n} -> ReduceScatter -> silu(gate) * up [B,T,F_n]."""
    normed_BTDn = rms_norm(x_BTDn, w["post_norm"], D, eps)
    gate_up_BT2F_U = functions.project(normed_BTDn, w["gate_up"])
    gate_up_BT2Fn = scatter(gate_up_BT2F_U, 3)
    return functions.swiglu(gate_up_BT2Fn)


def down_proj(act_BTFn, w):
    """act[B,T,F_n] . w[F_n,D] -> [B,T,D]{U_n} -> ReduceScatter -> [B,T,D_n]."""
    down_BTD_U = functions.project(act_BTFn, w["down"])
    return scatter(down_BTD_U, 2)


def embed(tokens_BT, table_VDn):
    """table[V, D_n] at tokens[B, T] -> x[B, T, D_n]: a node looks up its own columns, no transfer.

    The tokens are below V: a check inside would cost a select over the state.
    """
    return table_VDn.at[tokens_BT].get(mode="promise_in_bounds")


def layer(x_BTDn, w, cache, pos_B, cfg):
    """One whole decoder layer that reads shards and leaves shards.

    Args:
      x_BTDn: the node's residual coordinates.
      w: the node's block of every parameter of the layer.
      cache: (k, v) [B, K_n, S, H] of the node's KV groups.
      pos_B: position of each row's first token; public, the same on every node.
      cfg: the model's sizes.

    Returns:
      The residual shard after the layer, and the updated cache.
    """
    with jax.named_scope("qkv"):
        qkv_BTKnCH = qkv_proj(x_BTDn, w, cfg.D, cfg.eps)
    with jax.named_scope("attention"):
        o_BTKnGH, cache = functions.attention(qkv_BTKnCH, w, cache, pos_B, cfg)
    with jax.named_scope("out"):
        x_BTDn = x_BTDn + out_proj(o_BTKnGH, w)
    with jax.named_scope("gate_up"):
        act_BTFn = gate_up_proj(x_BTDn, w, cfg.D, cfg.eps)
    with jax.named_scope("down"):
        return x_BTDn + down_proj(act_BTFn, w), cache


def tensor_parallel_qkv(x_BTD, w, eps: float):
    """x[B,T,D] . w[D,K_n,C,H] -> [B,T,K_n,C,H]: no collective, the residual is complete."""
    normed_BTD = functions.rms_norm(x_BTD, w["input_norm"], eps)
    return functions.with_bias(functions.project(normed_BTD, w["qkv"]), w)


def tensor_parallel_rest(x_BTD, qkv_BTKnCH, w, cache, pos_B, cfg):
    """The layer after its Q/K/V, on the complete residual: two AllReduces.

    o[B,T,K_n,G,H] . w[K_n,G,H,D] -> [B,T,D]{U_n} -> AllReduce -> [B,T,D], and the same for
    act[B,T,F_n] . w[F_n,D].
    """
    o_BTKnGH, cache = functions.attention(qkv_BTKnCH, w, cache, pos_B, cfg)
    out_BTD_U = functions.out_proj(o_BTKnGH, w["out"])
    x_BTD = x_BTD + jax.lax.psum(out_BTD_U, AXIS)
    normed_BTD = functions.rms_norm(x_BTD, w["post_norm"], cfg.eps)
    gate_up_BT2Fn = functions.project(normed_BTD, w["gate_up"])
    down_BTD_U = functions.project(functions.swiglu(gate_up_BT2Fn), w["down"])
    return x_BTD + jax.lax.psum(down_BTD_U, AXIS), cache


def head(normed_B1Dn, table_VDn):
    """x[B,1,D_n] . w[V,D_n] -> [B,V]{U_n} -> ReduceScatter -> logits [B,V_n]."""
    logits_BV_U = jnp.einsum("bd,vd->bv", normed_B1Dn[:, 0], table_VDn)
    return scatter(logits_BV_U, 1)


def own(y, axis: int, split: Split):
    """The node's run of a complete value: y[.., M] -> y[.., M_n], padded with zeros to N runs."""
    pad = [(0, 0)] * y.ndim
    pad[axis] = (0, split.padded - split.size)
    start = jax.lax.axis_index(AXIS) * split.block
    return jax.lax.dynamic_slice_in_dim(jnp.pad(y, pad), start, split.block, axis)


def gather(y_n, axis: int, split: Split):
    """y[.., M_n] -> AllGather -> y[.., M] without the padding, the same on every node."""
    y = jax.lax.all_gather(y_n, AXIS, axis=axis, tiled=True, to="invarying")
    return jax.lax.slice_in_dim(y, 0, split.size, axis=axis)
