"""The maths that the unsharded reference and the operators on shards have in common.

An error here is in both, so parity between them cannot see it. `tests/model/test_functions.py`
compares each function with an independent float64 computation in numpy, and
`tests/model/test_reference.py` the whole decoder with Hugging Face transformers. The dimension key
is in `fcjax.model.config`.
"""

import math

import jax
import jax.numpy as jnp

from fcjax.model.config import ModelConfig


def project(x_BTM, w_MX):
    """x[B, T, M] . w[M, ...] -> [B, T, ...], summed over M in up to eight runs that are then added.

    Error in a matrix product of one row grows with the length of the sum. In runs it is less than
    half as large at the same speed on CPU, and a decode of 30 layers needs that margin: see
    BUILD_NOTES.md.
    """
    B, T, M = x_BTM.shape
    R = math.gcd(M, 8)
    y_BTX = _sum_in_runs(x_BTM.reshape(B, T, R, M // R), w_MX.reshape(R, M // R, -1))
    return y_BTX.reshape(B, T, *w_MX.shape[1:])


def _sum_in_runs(x_BTRM, w_RMX):
    return jnp.einsum("btrm,rmx->rbtx", x_BTRM, w_RMX).sum(axis=0)


def rms_norm(x_BTD, weight_D, eps: float):
    """x / sqrt(mean(x^2) + eps), then times the weight.

    In Qwen2RMSNorm's order: normalised in f32, cast back to the input's type, and only then
    multiplied, which differs in bf16 from multiplying in f32.
    """
    x32_BTD = x_BTD.astype(jnp.float32)
    mean_BT1 = jnp.mean(jnp.square(x32_BTD), axis=-1, keepdims=True)
    normed_BTD = (x32_BTD * jax.lax.rsqrt(mean_BT1 + eps)).astype(x_BTD.dtype)
    return normed_BTD * weight_D[None, None]


def head_norm(x_BTKGH, weight_H, eps: float):
    """`rms_norm` of each head by itself."""
    return rms_norm(x_BTKGH.reshape(-1, 1, x_BTKGH.shape[-1]), weight_H, eps).reshape(x_BTKGH.shape)


def out_proj(o_BTKGH, w_KGHD):
    """o[B, T, K, G, H] . w[K, G, H, D] -> [B, T, D], as `project`, with one run for each group."""
    B, T, K = o_BTKGH.shape[:3]
    return _sum_in_runs(o_BTKGH.reshape(B, T, K, -1), w_KGHD.reshape(K, -1, w_KGHD.shape[-1]))


def rope(x_BTKGH, pos_B, theta: float):
    """Rotate each head by its position; the T tokens of row b stand at pos_B[b], pos_B[b] + 1, ...

    Half-split: coordinate h pairs with h + H/2 (Hugging Face's `rotate_half`). The angle is
    computed in f32, since a bf16 position is off by whole tokens above 256.
    """
    T, H = x_BTKGH.shape[1], x_BTKGH.shape[-1]
    freq_h = 1.0 / theta ** (jnp.arange(0, H, 2, dtype=jnp.float32) / H)
    pos_BT = _positions(pos_B, T).astype(jnp.float32)
    angle_BTh = pos_BT[..., None] * freq_h[None, None]
    cos, sin = (f(angle_BTh)[:, :, None, None].astype(x_BTKGH.dtype) for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x_BTKGH, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _positions(pos_B, T: int):
    return pos_B[:, None] + jnp.arange(T)[None]


def attend(q_BTKGH, k_BKSH, v_BKSH, pos_B):
    """Causal attention of T new tokens a row over a cache of S slots.

    Query head g of group k reads the keys and values of group k, which is Hugging Face's
    `repeat_kv` order. Softmax in f32. Row b reads slot s where s <= pos_B[b] + t: there is always
    one.
    """
    T, S = q_BTKGH.shape[1], k_BKSH.shape[2]
    scale = q_BTKGH.shape[-1] ** -0.5
    scores_BKGTS = jnp.einsum("btkgh,bksh->bkgts", q_BTKGH, k_BKSH).astype(jnp.float32) * scale
    seen_BTS = jnp.arange(S)[None, None] <= _positions(pos_B, T)[..., None]
    scores_BKGTS = jnp.where(seen_BTS[:, None, None], scores_BKGTS, -jnp.inf)
    probs_BKGTS = jax.nn.softmax(scores_BKGTS, axis=-1).astype(q_BTKGH.dtype)
    return jnp.einsum("bkgts,bksh->btkgh", probs_BKGTS, v_BKSH)


def write_cache(old_BKSH, new_BTKH, pos_B):
    """The cache with slots pos_B[b] .. pos_B[b] + T - 1 of each row b written, in place if donated.

    Row by row: one scatter of all rows would run as a loop over them on CPU, and out of place.
    """
    new_BKTH = new_BTKH.swapaxes(1, 2).astype(old_BKSH.dtype)  # it may be kept in another type
    for row in range(new_BKTH.shape[0]):
        at = (row, 0, pos_B[row], 0)
        old_BKSH = jax.lax.dynamic_update_slice(old_BKSH, new_BKTH[row : row + 1], at)
    return old_BKSH


def with_bias(qkv_BTKCH, w):
    """The fused projections with their biases, if the model has any."""
    return qkv_BTKCH + w["qkv_bias"][None, None] if "qkv_bias" in w else qkv_BTKCH


def swiglu(gate_up_BT2F):
    """silu(gate) * up of a fused pair: [B, T, 2, F] -> [B, T, F]."""
    return jax.nn.silu(gate_up_BT2F[:, :, 0]) * gate_up_BT2F[:, :, 1]


def attention(qkv_BTKCH, w, cache, pos_B, cfg: ModelConfig):
    """Attention of whole KV groups: rotate, append to the cache, attend.

    Args:
      qkv_BTKCH: the fused projections, biases added, before RoPE.
      w: the layer's parameters by name; read where a model has some for q and k.
      cache: (k, v), each [B, K, S, H], row b filled up to pos_B[b].
      pos_B: int32, position of each row's first new token; pos_B + T <= S is the caller's duty.
      cfg: the model's sizes.

    Returns:
      o [B, T, K, G, H], and the cache with the T slots from pos_B[b] on of each row b written.
    """
    q_BTKGH, k_BTK1H, v_BTK1H = (qkv_BTKCH[..., cfg.slots[name], :] for name in "qkv")
    if cfg.qk_norm:
        q_BTKGH = head_norm(q_BTKGH, w["q_norm"], cfg.eps)
        k_BTK1H = head_norm(k_BTK1H, w["k_norm"], cfg.eps)
    q_BTKGH = rope(q_BTKGH, pos_B, cfg.rope_theta)
    k_BTKH = rope(k_BTK1H, pos_B, cfg.rope_theta)[..., 0, :]
    v_BTKH = v_BTK1H[..., 0, :]
    cache = tuple(
        write_cache(old_BKSH, new_BTKH, pos_B)
        for old_BKSH, new_BTKH in zip(cache, (k_BTKH, v_BTKH), strict=True)
    )
    k_BKSH, v_BKSH = (c.astype(q_BTKGH.dtype) for c in cache)
    return attend(q_BTKGH, k_BKSH, v_BKSH, pos_B), cache
