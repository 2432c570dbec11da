"""The unsharded Qwen2.5 decoder: the target of the conversion and the numerical oracle.

Everything is held by one device and computed as Hugging Face `transformers` does it
(models/qwen2/modeling_qwen2.py, eager attention), so a difference between this module and the
sharded programs is a fault of the sharded programs. Kernels keep the heads of one KV group side by
side, and gate beside up, so that any split over nodes is a plain slice of them. The dimension key
is in `fcjax.model.config`.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from fcjax.model.config import ModelConfig

# Dimensions of every parameter. One layer's parameters stand under "layers.<index>.".
LAYER_PARAMS = {
    "input_norm": ("D",),
    "qkv": ("D", "K", "C", "H"),  # per KV group: G query heads, then its key, then its value
    "qkv_bias": ("K", "C", "H"),
    "out": ("K", "G", "H", "D"),
    "post_norm": ("D",),
    "gate_up": ("D", "2", "F"),
    "down": ("F", "D"),
}
MODEL_PARAMS = {"embed": ("V", "D"), "norm": ("D",), "head": ("V", "D")}  # no head if tied


def param_shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter by its path, for example ``layers.3.qkv -> (D, K, C, H)``."""
    return {path: tuple(map(cfg.size, dims)) for path, dims in param_dims(cfg).items()}


def param_dims(cfg: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Dimension letters of every parameter by its path."""
    dims = {
        f"layers.{layer}.{name}": d for layer in range(cfg.L) for name, d in LAYER_PARAMS.items()
    }
    dims |= {n: d for n, d in MODEL_PARAMS.items() if not (cfg.tied and n == "head")}
    return dims


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


def attention(qkv_BTKCH, cache, pos_B, theta: float):
    """Attention of whole KV groups: rotate, append to the cache, attend.

    Args:
      qkv_BTKCH: the fused projections, biases added, before RoPE.
      cache: (k, v), each [B, K, S, H], row b filled up to pos_B[b].
      pos_B: int32, position of each row's first new token; pos_B + T <= S is the caller's duty.

    Returns:
      o [B, T, K, G, H], and the cache with the T slots from pos_B[b] on of each row b written.
    """
    q_BTKGH = rope(qkv_BTKCH[..., :-2, :], pos_B, theta)
    k_BTKH = rope(qkv_BTKCH[..., -2:-1, :], pos_B, theta)[..., 0, :]
    v_BTKH = qkv_BTKCH[..., -1, :]
    cache = tuple(
        write_cache(old_BKSH, new_BTKH, pos_B)
        for old_BKSH, new_BTKH in zip(cache, (k_BTKH, v_BTKH), strict=True)
    )
    k_BKSH, v_BKSH = (c.astype(q_BTKGH.dtype) for c in cache)
    return attend(q_BTKGH, k_BKSH, v_BKSH, pos_B), cache


class Layer(nnx.Module):
    """One decoder layer; its parameters and their dimensions are `LAYER_PARAMS`."""

    def __init__(self, cfg: ModelConfig, *, dtype=jnp.float32, rngs: nnx.Rngs):
        self.cfg = cfg
        for name, dims in LAYER_PARAMS.items():
            setattr(self, name, _param(cfg, name, dims, dtype, rngs))

    def qkv_proj(self, x_BTD):
        """Input norm and fused projection: q, k, v [B, T, K, C, H] before RoPE."""
        normed_BTD = rms_norm(x_BTD, self.input_norm[...], self.cfg.eps)
        return project(normed_BTD, self.qkv[...]) + self.qkv_bias[...][None, None]

    def mlp(self, x_BTD):
        """Post norm and SwiGLU: down(silu(gate) * up), without the residual."""
        normed_BTD = rms_norm(x_BTD, self.post_norm[...], self.cfg.eps)
        gate_up_BT2F = project(normed_BTD, self.gate_up[...])
        act_BTF = jax.nn.silu(gate_up_BT2F[:, :, 0]) * gate_up_BT2F[:, :, 1]
        return project(act_BTF, self.down[...])

    def __call__(self, x_BTD, cache, pos_B):
        """The residual after this layer, and its cache."""
        o_BTKGH, cache = attention(self.qkv_proj(x_BTD), cache, pos_B, self.cfg.rope_theta)
        x_BTD = x_BTD + out_proj(o_BTKGH, self.out[...])
        return x_BTD + self.mlp(x_BTD), cache


class Qwen2(nnx.Module):
    """The whole decoder on one device."""

    def __init__(self, cfg: ModelConfig, *, dtype=jnp.float32, rngs: nnx.Rngs):
        self.cfg = cfg
        self.embed = _param(cfg, "embed", MODEL_PARAMS["embed"], dtype, rngs)
        self.layers = nnx.List(Layer(cfg, dtype=dtype, rngs=rngs) for _ in range(cfg.L))
        self.norm = _param(cfg, "norm", MODEL_PARAMS["norm"], dtype, rngs)
        if not cfg.tied:
            self.head = _param(cfg, "head", MODEL_PARAMS["head"], dtype, rngs)

    def __call__(self, tokens_BT, cache, pos_B):
        """Run T tokens through every layer.

        Args:
          tokens_BT: int32 token ids, each below V (a larger one would be clamped in silence).
          cache: one (k, v) a layer, as `init_cache` makes it.
          pos_B: int32, position of each row's first token.

        Returns:
          The L + 1 residuals [B, T, D] that enter layer 0, 1, ..., L - 1 and the final norm,
          and the updated cache.
        """
        residuals = [self.embed[...][tokens_BT]]
        new_cache = []
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x_BTD, layer_cache = layer(residuals[-1], layer_cache, pos_B)
            residuals.append(x_BTD)
            new_cache.append(layer_cache)
        return residuals, new_cache

    def logits(self, x_BTD):
        """Final norm and head: [B, T, V]."""
        table_VD = self.embed[...] if self.cfg.tied else self.head[...]
        normed_BTD = rms_norm(x_BTD, self.norm[...], self.cfg.eps)
        return jnp.einsum("btd,vd->btv", normed_BTD, table_VD)


def init_cache(cfg: ModelConfig, batch: int, length: int, dtype=jnp.float32):
    """An empty cache: one (k, v) a layer, each [B, K, S, H]."""
    shape = (batch, cfg.K, length, cfg.H)
    return [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(cfg.L)]


def abstract_model(cfg: ModelConfig, dtype=jnp.float32) -> Qwen2:
    """The model with shapes in place of arrays, to be filled by `set_params`."""
    return nnx.eval_shape(lambda: Qwen2(cfg, dtype=dtype, rngs=nnx.Rngs(0)))


def get_params(model: Qwen2) -> dict[str, jax.Array]:
    """The parameters by path, as `param_shapes` names them."""
    return {".".join(map(str, path)): p.get_value() for path, p in _params(model)}


def set_params(model: Qwen2, params: dict[str, jax.Array]) -> Qwen2:
    """Fill every parameter of `model` from `params`; the paths must be the same set."""
    targets = {".".join(map(str, path)): p for path, p in _params(model)}
    if targets.keys() != params.keys():
        raise ValueError(f"parameters: expected {sorted(targets)}, got {sorted(params)}")
    for path, param in targets.items():
        param.set_value(params[path])
    return model


def _params(model: Qwen2):
    return nnx.to_flat_state(nnx.state(model, nnx.Param))


def _param(cfg: ModelConfig, name: str, dims, dtype, rngs: nnx.Rngs) -> nnx.Param:
    """A fresh parameter: norms one, biases zero, matrices normal with deviation 0.02."""
    shape = tuple(map(cfg.size, dims))
    if name.endswith("norm"):
        return nnx.Param(jnp.ones(shape, dtype))
    if name.endswith("bias"):
        return nnx.Param(jnp.zeros(shape, dtype))
    return nnx.Param(0.02 * jax.random.normal(rngs.params(), shape, dtype))
