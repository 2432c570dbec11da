"""Stacks of layers, and the all-gather between the two kinds of stack: one node's code.

Layers are unrolled: `lax.scan` over stacked weights copies each weight at every step on CPU, and
takes the layer's name out of the HLO.
"""

import jax
import jax.numpy as jnp

from fcjax.mesh import AXIS
from fcjax.model.params import LAYER_PARAMS
from fcjax.sharded import ops
from fcjax.sharded.ownership import Plan

QKV = ("input_norm", "qkv", "qkv_bias")  # the parameters up to a layer's Q/K/V


def paths(layer: int, names=tuple(LAYER_PARAMS)) -> tuple[str, ...]:
    """Paths of a layer's parameters."""
    return tuple(f"layers.{layer}.{name}" for name in names)


def own_params(params: dict, layer: int) -> dict:
    """The parameters of one layer that a program reads, by their names in the layer."""
    prefix = f"layers.{layer}."
    return {p.removeprefix(prefix): w for p, w in params.items() if p.startswith(prefix)}


def sharded(cfg, layers, params, caches, x_BTDn, pos_B):
    """Whole layers that read shards and leave shards: the residual's, and the caches."""
    new_caches = []
    for i, cache in zip(layers, caches, strict=True):
        with jax.named_scope(f"layer_{i}"):
            x_BTDn, cache = ops.layer(x_BTDn, own_params(params, i), cache, pos_B, cfg)
        new_caches.append(cache)
    return x_BTDn, new_caches


def tensor_parallel(cfg, layers, params, caches, x_BTD, pos_B, qkv_BTKnCH=None):
    """Unmodified layers, on the complete residual.

    `qkv_BTKnCH` is given where the first one's Q/K/V is there already.
    """
    new_caches = []
    for i, cache in zip(layers, caches, strict=True):
        with jax.named_scope(f"layer_{i}"):
            w = own_params(params, i)
            if qkv_BTKnCH is None:
                qkv_BTKnCH = ops.tensor_parallel_qkv(x_BTD, w, cfg.eps)
            x_BTD, cache = ops.tensor_parallel_rest(x_BTD, qkv_BTKnCH, w, cache, pos_B, cfg)
        qkv_BTKnCH = None
        new_caches.append(cache)
    return x_BTD, new_caches


def compatibility_all_gather(plan: Plan, x_BTDn, qkv_BTKnCH):
    """One all-gather of residual and q, k, v for the unmodified layers: outside the claim.

    Both go through one flat buffer, so that there is one instruction to find; the barrier keeps
    the compiler from starting it before the last scatter is done.

    Returns:
      Residual [B, T, D] and qkv [B, T, K, C, H] without padding, the same on every node.
    """
    x_BTDn, qkv_BTKnCH = jax.lax.optimization_barrier((x_BTDn, qkv_BTKnCH))
    B, T, Kn, C, H = qkv_BTKnCH.shape
    flat_BTM = jnp.concatenate([x_BTDn, qkv_BTKnCH.reshape(B, T, Kn * C * H)], axis=2)
    flat_NBTM = jax.lax.all_gather(flat_BTM, AXIS, to="invarying")
    x_NBTD, qkv_NBTM = jnp.split(flat_NBTM, [x_BTDn.shape[2]], axis=3)
    x_BTD = jnp.concatenate(x_NBTD, axis=2)
    qkv_BTKCH = jnp.concatenate(qkv_NBTM.reshape(-1, B, T, Kn, C, H), axis=2)
    return x_BTD[:, :, : plan.cfg.D], qkv_BTKCH[:, :, : plan.cfg.K]
