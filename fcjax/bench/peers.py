"""The peers that are timed beside each other: functions without arguments, a step a call."""

import math
import tempfile
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fcjax import cold_starts
from fcjax.decode import parity
from fcjax.decode.decoder import Decoder
from fcjax.model import reference
from fcjax.model.params import param_shapes
from fcjax.record import baseline
from fcjax.record.job import Job
from fcjax.record.start import Start
from fcjax.sharded import programs
from fcjax.sharded.layout import Layout


def layer_step(layout: Layout, params: dict, layer: int, length: int) -> Callable:
    """One layer over the nodes, one token at the end of a cache of `length` slots."""
    program = programs.one_layer(layout.model, layer)
    step = programs.compile(program, layout, batch=1, tokens=1, length=length)
    params = {path: params[path] for path in program.params}
    state, pos = (_ones(layout.value(name, batch=1, tokens=1)) for name in program.arguments)
    pos = pos * (length - 1)
    caches = [tuple(map(_ones, layout.cache(1, length)))]

    def call():
        nonlocal caches
        residual, caches = step(params, caches, state, pos)
        return residual

    return call


def tensor_parallel_step(layout: Layout, step, params: dict, length: int) -> Callable:
    """One decode step of ordinary tensor parallelism, the next token out.

    Args:
      layout: of a `TensorParallel` model.
      step: its program, compiled for one row and `length` slots.
      params: laid out as it says.
      length: slots of the caches.
    """
    tokens, pos = (_ones(layout.value(n, 1, 1)) for n in layout.model.program().arguments)
    pos = pos * (length - 1)
    caches = layout.init_cache(1, length)

    def call():
        nonlocal caches
        token, _, caches = step(params, caches, tokens, pos)
        return token

    return call


def decode_step(decoder: Decoder) -> Callable:
    """One decode step into the last slot of the caches, the next token out."""
    token, pos = np.ones((1, 1), np.int32), np.array([decoder.programs.slots - 1])
    return lambda: decoder.step(token, pos).values["next_tokens"]


class Unsharded:
    """The reference model as a peer: the same work on one device, with all cores."""

    def __init__(self, source, length: int):
        self.model = parity.unsharded(source)
        self.pos = jnp.array([length - 1])
        self.caches = reference.init_cache(source.cfg, 1, length)

    def layer_step(self, layer: int) -> Callable:
        """One layer, one token into the last slot of its cache."""
        step = jax.jit(lambda module, x, cache, pos: module(x, cache, pos), donate_argnums=2)
        x_BTD = jnp.ones((1, 1, self.model.cfg.D))

        def call():
            module, cache = self.model.layers[layer], self.caches[layer]
            residual, self.caches[layer] = step(module, x_BTD, cache, self.pos)
            return residual

        return call

    def decode_step(self) -> Callable:
        """One decode step into the last slot of the caches, logits out."""

        def run(model, tokens, caches, pos):
            residuals, caches = model(tokens, caches, pos)
            return model.logits(residuals[-1]), caches

        step = jax.jit(run, donate_argnums=2)
        token = jnp.ones((1, 1), jnp.int32)

        def call():
            logits, self.caches = step(self.model, token, self.caches, self.pos)
            return logits

        return call


def torch_step(folder, length: int) -> Callable:
    """One decode step of transformers on torch in f32, at the end of a cache of `length` - 1."""
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    cache = DynamicCache(config=model.config)

    @torch.no_grad()
    def call():
        if cache.get_seq_length() == 0:
            model(torch.ones(1, length - 1, dtype=torch.int64), cache=cache)
        out = model(torch.ones(1, 1, dtype=torch.int64), cache=cache)
        cache.crop(-1)
        return np.asarray(out.logits)

    return call


def recording(model_path: str, source, layout: Layout, platform: str, steps: int) -> dict:
    """What recording costs: one start without a reference, into a folder that is thrown away.

    Returns:
      "seconds" of recording all steps, and "share" of the programs' time.
    """
    model = layout.model
    what = {"cfg": source.cfg, "interval": model.interval, "sampling": model.sampling}
    what |= {"nodes": model.plan.nodes, "dtype": layout.dtype.name, "platform": platform}
    where = {"command": "benchmark", "flags": {}, "model_path": model_path, "hardware": ""}
    amount = {"cold_starts": 1, "steps": steps, "length": steps + 1, "prompts": ((("", (1,)),),)}
    job = Job(
        **what, **where, **amount, weights_sha256=source.digest, seed=0, compared=False,
        baseline=baseline.none(),
    )
    with tempfile.TemporaryDirectory() as folder:
        start = Start(cold_starts.create(f"{folder}/run", job), job, 0)
        start.prepare()
        start.load()
        return start.decode()["recording"]


def step_bytes(cfg, length: int) -> int:
    """Bytes that a decode step must read in f32: every weight but the embedding rows that it does
    not look up (a tied table is read by the head), and the filled cache."""
    shapes = param_shapes(cfg)
    weights = sum(math.prod(s) for p, s in shapes.items() if cfg.tied or p != "embed")
    return 4 * (weights + 2 * cfg.L * cfg.K * length * cfg.H)


def _ones(target: jax.ShapeDtypeStruct) -> jax.Array:
    return jnp.ones(target.shape, target.dtype, device=target.sharding)
