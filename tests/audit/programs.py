"""Programs for the audit's tests: the real interval, whole or with one thing changed in it."""

import contextlib
import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp

from fcjax import audit, ops, ownership
from fcjax.config import ModelConfig
from fcjax.model import Interval, Model
from fcjax.ownership import AXIS, Plan

# Sizes that no two axes share, local or complete, so that an axis cannot be taken for another.
TINY = ModelConfig(
    L=4, D=38, K=2, G=3, H=10, F=62, V=97,
    tied=True, eps=1e-6, rope_theta=1e4, max_len=64, dtype="float32",
)  # fmt: skip
# Sizes at which XLA sums in two stages (a tree of windows), or pads before a library call.
SMOL = dataclasses.replace(TINY, L=30, D=576, K=3, G=3, H=64, F=1536, V=49152)
QWEN_05 = dataclasses.replace(TINY, L=24, D=896, K=2, G=7, H=64, F=4864, V=151936)
QWEN_15 = dataclasses.replace(TINY, L=28, D=1536, K=2, G=6, H=128, F=8960, V=151936)
LENGTH = 11  # cache slots

# Options of `interval`.
HONEST = {
    "2 nodes": {},
    "2 nodes, batch 4": {"batch": 4},
    "2 nodes, 5 tokens": {"tokens": 5},
    "2 nodes, depth 3": {"depth": 3},
    "2 nodes, bf16": {"dtype": jnp.bfloat16},
    "2 nodes, bf16, batch 4": {"dtype": jnp.bfloat16, "batch": 4},
    "3 nodes": {"nodes": 3},
    "3 nodes, batch 3 (as many rows as nodes)": {"nodes": 3, "batch": 3},
    "3 nodes, bf16, 2 tokens": {"nodes": 3, "dtype": jnp.bfloat16, "tokens": 2},
    "4 nodes, batch 4": {"nodes": 4, "batch": 4},
    "4 nodes, depth 2": {"nodes": 4, "depth": 2},
    "5 nodes": {"nodes": 5},
    "8 nodes": {"nodes": 8},
    "8 nodes, batch 4, bf16": {"nodes": 8, "batch": 4, "dtype": jnp.bfloat16},
    "SmolLM2's sizes, 3 KV groups on 2 nodes": {"cfg": SMOL},
    "SmolLM2's sizes, batch 4, 5 tokens": {"cfg": SMOL, "batch": 4, "tokens": 5},
    "1.5B's sizes": {"cfg": QWEN_15},
    "1.5B's sizes, batch 4": {"cfg": QWEN_15, "batch": 4},
    "1.5B's sizes, 5 nodes": {"cfg": QWEN_15, "nodes": 5},
    "0.5B's sizes, 3 nodes (windows with padding)": {"cfg": QWEN_05, "nodes": 3},
}


@functools.cache
def honest(**options):
    """`interval(...)` with nothing changed in it, compiled once a session."""
    return interval(**options)


def interval(
    nodes=2, *, batch=1, tokens=1, depth=1, dtype=jnp.float32, cfg=TINY, patches=(), mesh=None
):
    """HLO text of the interval, compiled under the given patches, and its contract."""
    model = Model(Plan(cfg, nodes), Interval(0, depth), mesh or ownership.make_mesh(nodes), dtype)
    sizes = (batch, tokens, LENGTH)
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        text = model.compile(model.inside, *sizes).as_text()
    return text, audit.interval_contract(model, *sizes)


def verdict(*args, **kwargs) -> audit.Verdict:
    """The audit of `interval(...)`."""
    return audit.audit_interval(*interval(*args, **kwargs))


def replace(name: str, fn):
    """A patch that puts `fn` in the place of the operator `ops.<name>`."""
    return mock.patch.object(ops, name, fn)


def leak(fn):
    """A patch: `fn` rebuilds the complete residual [B, T, D] from shards, and the layer uses it."""
    layer = ops.layer

    def leaking(x_BTDn, *args):
        x_BTD = fn(x_BTDn)
        start = jax.lax.axis_index(AXIS) * x_BTDn.shape[2]
        # The neighbour's coordinates, so that the compiler cannot see that nothing has crossed.
        own = jax.lax.dynamic_slice_in_dim(jnp.roll(x_BTD, 1, 2), start, x_BTDn.shape[2], 2)
        return layer(x_BTDn + 0.5 * own.astype(x_BTDn.dtype), *args)

    return replace("layer", leaking)
