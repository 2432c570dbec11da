"""How far the sharded run is from the unsharded reference on the same tokens."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from fcjax.model import reference
from fcjax.model.config import ModelConfig
from fcjax.model.params import param_shapes
from fcjax.sharded import layout
from fcjax.sharded.interval import Interval

# By the type of the nodes' computation, for residual, q, k, v and logits, against f32. bf16 keeps 8
# bits: its bound is there to catch a wrong result, not to measure a right one.
BOUND = {"float32": 1e-5, "bfloat16": 1e-1}


def row_error(out, ref) -> float:
    """The parity figure: over rows, the maximum of |out - ref|_2 / |ref|_2.

    Args:
      out: [rows, width]; computed in float64 here.
      ref: the same shape; a row of zeros must be met exactly.

    Returns:
      The figure; infinity where a number is not one, so that no bound and no maximum hides it.
    """
    out, ref = np.asarray(out, np.float64), np.asarray(ref, np.float64)
    if out.shape != ref.shape:
        raise ValueError(f"parity: expected shape {ref.shape}, got {out.shape}")
    with np.errstate(divide="ignore", invalid="ignore"):
        error, size = (np.linalg.norm(x, axis=1) for x in (out - ref, ref))
        ratio = np.where(error == 0, 0, error / size)
    return float(np.max(np.where(np.isnan(ratio), np.inf, ratio)))


def unsharded(source) -> reference.Transformer:
    """The reference model in f32, whole, on one device."""
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    targets = {
        path: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=device)
        for path, shape in param_shapes(source.cfg).items()
    }
    return reference.set_params(reference.abstract_model(source.cfg), source.load(targets))


class Oracle:
    """The unsharded reference in f32, run beside the nodes for the check only."""

    def __init__(self, source, interval: Interval, batch: int, length: int):
        """
        Args:
          source: the open model folder; its parameters are loaded once more, whole, on one device.
          interval: where to compare: the residual entering its successor, and that layer's q, k, v.
          batch: rows.
          length: cache slots.
        """
        self.model = unsharded(source)
        self.cache = reference.init_cache(source.cfg, batch, length)
        self._step = jax.jit(self._run, static_argnums=0, donate_argnums=3)
        self._layer = interval.successor

    def restart(self, interval: Interval, length: int) -> None:
        """Empty the cache, for another run of the same rows."""
        batch = self.cache[0][0].shape[0]
        self.cache = reference.init_cache(self.model.cfg, batch, length)
        self._layer = interval.successor

    @staticmethod
    def _run(layer, model, tokens_BT, cache, pos_B):
        residuals, cache = model(tokens_BT, cache, pos_B)
        figures = {"residual": residuals[layer]}
        if layer < model.cfg.L:
            figures["qkv"] = model.layers[layer].qkv_proj(residuals[layer])
        if tokens_BT.shape[1] == 1:
            figures["logits"] = model.logits(residuals[-1])[:, 0]
        return figures, cache

    def step(self, tokens_BT, pos_B) -> dict[str, np.ndarray]:
        """At the interval's end residual [B, T, D] and, if a layer follows, qkv [B, T, K, C, H];
        if T = 1 the logits [B, V]."""
        inputs = jax.device_put((tokens_BT.astype(np.int32), pos_B.astype(np.int32)))
        figures, self.cache = self._step(self._layer, self.model, inputs[0], self.cache, inputs[1])
        return jax.device_get(figures)


def compare(
    cfg: ModelConfig, shards: dict[str, np.ndarray], oracle: dict[str, np.ndarray], own_BT=None
) -> dict[str, float]:
    """Parity figure of every state tensor in the values that the oracle has: residual, q, k, v and
    logits.

    A row is one token of one prompt; with `own_BT` only those where it is true, at least one: what
    fills a chunk up is nobody's state.
    """

    def rows(value: layout.ValueLayout, x) -> np.ndarray:
        if "T" not in value.dims:
            return x
        flat = x.reshape(math.prod(x.shape[:2]), -1)
        return flat if own_BT is None else flat[own_BT.reshape(-1)]

    figures = {}
    for name, value in layout.VALUES.items():
        if name not in oracle:
            continue
        ours, theirs = (value.parts(cfg, x[name]) for x in (shards, oracle))
        for state, ref in theirs.items():
            figures[state] = row_error(rows(value, ours[state]), rows(value, ref))
    return figures
