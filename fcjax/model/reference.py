"""The unsharded decoder: the target of the conversion and the numerical oracle.

Everything is held by one device and computed as Hugging Face `transformers` does it
(models/qwen2/modeling_qwen2.py, eager attention), so a difference between this module and the
sharded programs is a fault of the sharded programs. Projection, attention and RoPE are the same
code in both (`model.functions`): a fault in there is for that module's own tests to find, and for
transformers, which shares nothing. Kernels keep the heads of one KV group side by
side, and gate beside up, so that any split over nodes is a plain slice of them. The dimension key
is in `fcjax.model.config`.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from fcjax.model.config import ModelConfig
from fcjax.model.functions import attention, out_proj, project, rms_norm, swiglu, with_bias
from fcjax.model.params import LAYER_PARAMS, MODEL_PARAMS, Param, present


class Layer(nnx.Module):
    """One decoder layer; its parameters and their dimensions are `LAYER_PARAMS`."""

    def __init__(self, cfg: ModelConfig, *, dtype=jnp.float32, rngs: nnx.Rngs):
        self.cfg = cfg
        for name, param in present(cfg, LAYER_PARAMS).items():
            setattr(self, name, _fresh(cfg, param, dtype, rngs))

    def weights(self) -> dict[str, jax.Array]:
        """The layer's parameters by name."""
        return {name: getattr(self, name)[...] for name in present(self.cfg, LAYER_PARAMS)}

    def qkv_proj(self, x_BTD):
        """Input norm and fused projection: q, k, v [B, T, K, C, H] before RoPE."""
        normed_BTD = rms_norm(x_BTD, self.input_norm[...], self.cfg.eps)
        return with_bias(project(normed_BTD, self.qkv[...]), self.weights())

    def mlp(self, x_BTD):
        """Post norm and SwiGLU: down(silu(gate) * up), without the residual."""
        normed_BTD = rms_norm(x_BTD, self.post_norm[...], self.cfg.eps)
        return project(swiglu(project(normed_BTD, self.gate_up[...])), self.down[...])

    def __call__(self, x_BTD, cache, pos_B):
        """The residual after this layer, and its cache."""
        qkv_BTKCH = self.qkv_proj(x_BTD)
        o_BTKGH, cache = attention(qkv_BTKCH, self.weights(), cache, pos_B, self.cfg)
        x_BTD = x_BTD + out_proj(o_BTKGH, self.out[...])
        return x_BTD + self.mlp(x_BTD), cache


class Transformer(nnx.Module):
    """The whole decoder on one device."""

    def __init__(self, cfg: ModelConfig, *, dtype=jnp.float32, rngs: nnx.Rngs):
        self.cfg = cfg
        for name, param in present(cfg, MODEL_PARAMS).items():
            setattr(self, name, _fresh(cfg, param, dtype, rngs))
        self.layers = nnx.List(Layer(cfg, dtype=dtype, rngs=rngs) for _ in range(cfg.L))

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


def abstract_model(cfg: ModelConfig, dtype=jnp.float32) -> Transformer:
    """The model with shapes in place of arrays, to be filled by `set_params`."""
    return nnx.eval_shape(lambda: Transformer(cfg, dtype=dtype, rngs=nnx.Rngs(0)))


def get_params(model: Transformer) -> dict[str, jax.Array]:
    """The parameters by path, as `param_shapes` names them."""
    return {".".join(map(str, path)): p.get_value() for path, p in _params(model)}


def set_params(model: Transformer, params: dict[str, jax.Array]) -> Transformer:
    """Fill every parameter of `model` from `params`; the paths must be the same set."""
    targets = {".".join(map(str, path)): p for path, p in _params(model)}
    if targets.keys() != params.keys():
        raise ValueError(f"parameters: expected {sorted(targets)}, got {sorted(params)}")
    for path, param in targets.items():
        param.set_value(params[path])
    return model


def _params(model: Transformer):
    return nnx.to_flat_state(nnx.state(model, nnx.Param))


def _fresh(cfg: ModelConfig, param: Param, dtype, rngs: nnx.Rngs) -> nnx.Param:
    """A fresh parameter; matrices are normal with deviation 0.02."""
    shape = tuple(map(cfg.size, param.dims))
    if param.start == "normal":
        return nnx.Param(0.02 * jax.random.normal(rngs.params(), shape, dtype))
    return nnx.Param((jnp.ones if param.start == "ones" else jnp.zeros)(shape, dtype))
