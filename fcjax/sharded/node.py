"""One node's code: stacks of layers, and the passes that are made of them.

Layers are unrolled: `lax.scan` over stacked weights copies each weight at every step on CPU, and
takes the layer's name out of the HLO.
"""

import jax
import jax.numpy as jnp

from fcjax.mesh import AXIS
from fcjax.model import functions
from fcjax.model.params import layer_params
from fcjax.sharded import operators, ops
from fcjax.sharded.ownership import Plan


def sharded(cfg, layers, params, caches, x_BTDn, pos_B):
    """Whole layers that read shards and leave shards: the residual's, and the caches."""
    new_caches = []
    for i, cache in zip(layers, caches, strict=True):
        with jax.named_scope(f"layer_{i}"):
            x_BTDn, cache = ops.layer(x_BTDn, layer_params(params, i), cache, pos_B, cfg)
        new_caches.append(cache)
    return x_BTDn, new_caches


def tensor_parallel(cfg, layers, params, caches, x_BTD, pos_B, qkv_BTKnCH=None):
    """Unmodified layers, on the complete residual.

    `qkv_BTKnCH` is given where the first one's Q/K/V is there already.
    """
    new_caches = []
    for i, cache in zip(layers, caches, strict=True):
        with jax.named_scope(f"layer_{i}"):
            w = layer_params(params, i)
            if qkv_BTKnCH is None:
                qkv_BTKnCH = ops.tensor_parallel_qkv(x_BTD, w, cfg.eps)
            x_BTD, cache = ops.tensor_parallel_rest(x_BTD, qkv_BTKnCH, w, cache, pos_B, cfg)
        qkv_BTKnCH = None
        new_caches.append(cache)
    return x_BTD, new_caches


def run_before(model, params, caches, tokens_BT, pos_B):
    """tokens -> residual shards; the layers before the interval on the complete residual."""
    cfg, split = model.plan.cfg, model.plan.split("D")
    x_BTDn = _embed(params, tokens_BT)
    if not caches:  # the interval starts at layer 0: the residual was never complete
        return x_BTDn, caches
    x_BTD, layers = ops.gather(x_BTDn, 2, split), range(model.interval.first)
    x_BTD, caches = tensor_parallel(cfg, layers, params, caches, x_BTD, pos_B)
    return ops.own(x_BTD, 2, split), caches


def run_interval(model, params, caches, x_BTDn, pos_B):
    """Residual shards -> residual and qkv, as shards, and after the interval complete."""
    cfg, end = model.plan.cfg, model.interval.successor
    x_BTDn, caches = sharded(cfg, model.interval.layers, params, caches, x_BTDn, pos_B)
    with jax.named_scope(f"layer_{end}"), jax.named_scope(operators.QKV.name):
        qkv_BTKnCH = ops.qkv_proj(x_BTDn, layer_params(params, end), cfg.D, cfg.eps)
    # The interval ends here.
    with jax.named_scope("compatibility_all_gather"):
        complete = compatibility_all_gather(model.plan, x_BTDn, qkv_BTKnCH)
    return x_BTDn, qkv_BTKnCH, *complete, caches


def run_whole_prefill(model, params, caches, tokens_BT, pos_B):
    """tokens -> residual shards after the last layer."""
    x_BTDn = _embed(params, tokens_BT)
    return sharded(model.plan.cfg, model.interval.layers, params, caches, x_BTDn, pos_B)


def run_whole(model, params, caches, tokens_B1, pos_B, *choice):
    """tokens -> next tokens, logits and residual shards; no layer is outside."""
    cfg = model.plan.cfg
    x_B1Dn, caches = run_whole_prefill(model, params, caches, tokens_B1, pos_B)
    with jax.named_scope("head"):
        normed_B1Dn = ops.rms_norm(x_B1Dn, params[operators.HEAD.norm], cfg.D, cfg.eps)
        logits_BVn = ops.head(normed_B1Dn, _head(model, params))
    return _choose(model, logits_BVn, pos_B, choice), logits_BVn, x_B1Dn, caches


def run_after_prefill(model, params, caches, x_BTD, qkv_BTKCH, pos_B):
    """The layers after the interval; only their caches are left of a prefill."""
    return (_unmodified(model, params, caches, x_BTD, qkv_BTKCH, pos_B)[1],)


def run_after(model, params, caches, x_B1D, qkv_B1KCH, pos_B, *choice):
    """Complete residual and qkv -> next tokens and logits shards."""
    x_B1D, caches = _unmodified(model, params, caches, x_B1D, qkv_B1KCH, pos_B)
    return *_head_of_complete(model, params, x_B1D, pos_B, choice), caches


def run_tensor_parallel(model, params, caches, tokens_B1, pos_B, *choice):
    """tokens -> next tokens and logits shards, the complete residual on every node."""
    cfg = model.plan.cfg
    x_B1D = ops.gather(_embed(params, tokens_B1), 2, model.plan.split("D"))
    x_B1D, caches = tensor_parallel(cfg, range(cfg.L), params, caches, x_B1D, pos_B)
    return *_head_of_complete(model, params, x_B1D, pos_B, choice), caches


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


def _embed(params, tokens_BT):
    with jax.named_scope("embed"):
        return ops.embed(tokens_BT, params[operators.EMBED.table])


def _head(model, params):
    """The head's table, which is the embedding's if the model ties them."""
    return params[operators.HEAD.path(model.plan.cfg, operators.HEAD.weight, None)]


def _head_of_complete(model, params, x_B1D, pos_B, choice):
    """Next tokens and logits of a complete residual, each node for its own words."""
    with jax.named_scope("head"):
        normed_B1D = functions.rms_norm(x_B1D, params[operators.HEAD.norm], model.plan.cfg.eps)
        normed_B1Dn = ops.own(normed_B1D, 2, model.plan.split("D"))
        logits_BVn = ops.head(normed_B1Dn, _head(model, params))
    return _choose(model, logits_BVn, pos_B, choice), logits_BVn


def _unmodified(model, params, caches, x_BTD, qkv_BTKCH, pos_B):
    """The layers after the interval; the first one's q, k, v came out of it."""
    qkv_BTKnCH = ops.own(qkv_BTKCH, 2, model.plan.split("K"))
    layers = range(model.interval.successor, model.plan.cfg.L)
    return tensor_parallel(model.plan.cfg, layers, params, caches, x_BTD, pos_B, qkv_BTKnCH)


def _choose(model, logits_BVn, pos_B, choice):
    named = dict(zip(model.sampling.arguments, choice, strict=True))
    with jax.named_scope("choose"):
        next_B = model.sampling.choose(
            logits_BVn, model.plan.split("V"), pos_B, named.get("seed"), named.get("seen")
        )
    return next_B[:, None]
