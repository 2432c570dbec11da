"""Programs for the audit's tests: the real interval, whole or with one thing changed in it."""

import contextlib
import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp

from fcjax import audit
from fcjax.mesh import AXIS, make_mesh
from fcjax.model.config import ModelConfig
from fcjax.sharded import ops, programs
from fcjax.sharded.contract import interval_contract
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from fcjax.sharded.sampling import Sampling

# Sizes that no two axes share, local or complete, so that an axis cannot be taken for another.
TINY = ModelConfig(
    L=4, D=38, K=2, G=3, H=10, F=62, V=97,
    tied=True, eps=1e-6, rope_theta=1e4, max_len=64, dtype="float32",
)
UNTIED = dataclasses.replace(TINY, tied=False)
# Sizes at which XLA sums in two stages (a tree of windows), or pads before a library call.
SMOL = dataclasses.replace(TINY, L=30, D=576, K=3, G=3, H=64, F=1536, V=49152)
QWEN_05 = dataclasses.replace(TINY, L=24, D=896, K=2, G=7, H=64, F=4864, V=151936)
QWEN_15 = dataclasses.replace(TINY, L=28, D=1536, K=2, G=6, H=128, F=8960, V=151936)
LENGTH = 11  # cache slots
SAMPLED = Sampling(temperature=0.7, top_k=20, top_p=0.9)
QWEN3 = dataclasses.replace(TINY, qkv_bias=False, qk_norm=True)
LLAMA = dataclasses.replace(TINY, qkv_bias=False)
WHOLE = {"depth": None}  # of `interval`: every layer, with the embedding and the head

# Options of `interval`.
HONEST = {
    "Qwen3, 2 nodes": {"cfg": QWEN3},
    "Qwen3, 3 nodes, 3 rows": {"cfg": QWEN3, "nodes": 3, "batch": 3},
    "Qwen3, 5 nodes, 4 tokens": {"cfg": QWEN3, "nodes": 5, "tokens": 4},
    "whole, Qwen3, 2 nodes": {**WHOLE, "cfg": QWEN3},
    "whole, Qwen3, 3 nodes": {**WHOLE, "cfg": QWEN3, "nodes": 3},
    "whole, Qwen3, 5 nodes": {**WHOLE, "cfg": QWEN3, "nodes": 5},
    "Llama, 3 nodes": {"cfg": LLAMA, "nodes": 3},
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
    "whole": WHOLE,
    "whole, 3 nodes, 3 rows": {**WHOLE, "nodes": 3, "batch": 3},
    "whole, 8 nodes, bf16": {**WHOLE, "nodes": 8, "dtype": jnp.bfloat16, "batch": 2},
    "whole, a head of its own": {**WHOLE, "cfg": UNTIED, "nodes": 3},
    "whole, sampled, 3 nodes, 3 rows": {**WHOLE, "sampling": SAMPLED, "nodes": 3, "batch": 3},
    "whole, sampled by temperature": {**WHOLE, "sampling": Sampling(1.0), "nodes": 4},
    "whole, sampled by top-k": {**WHOLE, "sampling": Sampling(1.0, 5), "batch": 2},
    "whole, sampled by top-p": {**WHOLE, "sampling": Sampling(1.0, 0, 0.5), "nodes": 4},
    "whole, repetition penalty": {
        **WHOLE,
        "sampling": Sampling(0.7, 20, 0.9, 1.1),
        "nodes": 3,
        "batch": 2,
    },
    # Of f32, 0.8 and 1.6 are rounded; their inverses are not.
    "whole, sampled, exact inverses": {**WHOLE, "sampling": Sampling(0.8, 40, 0.9, 1.6)},
    "whole, bf16, sampled": {**WHOLE, "sampling": SAMPLED, "dtype": jnp.bfloat16, "batch": 2},
    "whole, prefill": {**WHOLE, "tokens": 5},
    "whole, prefill, 3 nodes, 3 rows": {**WHOLE, "tokens": 4, "nodes": 3, "batch": 3},
    "whole, prefill, bf16": {**WHOLE, "tokens": 5, "nodes": 4, "dtype": jnp.bfloat16},
    "whole, SmolLM2's sizes": {**WHOLE, "cfg": SMOL, "sampling": SAMPLED, "batch": 2},
    "whole, 0.5B's sizes": {**WHOLE, "cfg": QWEN_05, "nodes": 3, "batch": 3},
    "whole, 1.5B's sizes": {**WHOLE, "cfg": QWEN_15},
    "whole, 1.5B's sizes, sampled": {**WHOLE, "cfg": QWEN_15, "sampling": SAMPLED, "nodes": 3},
    "whole, 1.5B's sizes, prefill": {**WHOLE, "cfg": QWEN_15, "tokens": 16, "batch": 2},
}


def compiled_with(**flags):
    """A patch: programs are compiled with other passes, or in another order."""
    compiled = jax.stages.Lowered.compile
    return mock.patch.object(jax.stages.Lowered, "compile", lambda self: compiled(self, flags))


_SAMPLED_BF16 = {**WHOLE, "sampling": SAMPLED, "dtype": jnp.bfloat16, "batch": 2}
_COMPILED = {
    "no simplification": compiled_with(xla_disable_hlo_passes="algsimp"),
    "conversions kept": compiled_with(xla_disable_hlo_passes="simplify-fp-conversions"),
    "fast math": compiled_with(xla_cpu_enable_fast_math=True),
    "no fast math": compiled_with(xla_cpu_enable_fast_math=False),
    "latency hiding": compiled_with(xla_gpu_enable_latency_hiding_scheduler=True),
    "no optimization": compiled_with(xla_backend_optimization_level=0),
}
HONEST |= {name: {"patches": (patch,)} for name, patch in _COMPILED.items()}
HONEST |= {
    f"whole, bf16, sampled, {name}": {**_SAMPLED_BF16, "patches": (patch,)}
    for name, patch in _COMPILED.items()
}


@functools.cache
def honest(**options):
    """`interval(...)` with nothing changed in it, compiled once a session."""
    return interval(**options)


def interval_model(
    nodes,
    depth=1,
    dtype=jnp.float32,
    cfg=TINY,
    sampling=Sampling(),  # noqa: B008
    mesh=None,
    layers=2,
):
    """A model with the interval in front, laid out; with depth None whole, of so many layers."""
    cfg = cfg if depth else dataclasses.replace(cfg, L=layers)
    plan, mesh = Plan(cfg, nodes), mesh or make_mesh(nodes)
    return Layout(ShardedModel(plan, Interval(0, depth or cfg.L), sampling), mesh, dtype)


def interval(nodes=2, *, batch=1, tokens=1, patches=(), **options):
    """HLO text of the interval, compiled under the given patches, and its contract.

    The other options are those of `interval_model`.
    """
    layout = interval_model(nodes, **options)
    sizes = (batch, tokens, LENGTH if tokens <= LENGTH else 2 * tokens)
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        program = programs.interval(layout.model, tokens)
        text = programs.compile(program, layout, *sizes).as_text()
    return text, interval_contract(layout.model, *sizes, layout.dtype.name)


def verdict(*args, **kwargs) -> audit.Verdict:
    """The audit of `interval(...)`."""
    return audit.audit_interval(*interval(*args, **kwargs))


def replace(name: str, fn, of=ops):
    """A patch that puts `fn` in the place of the operator `ops.<name>`."""
    return mock.patch.object(of, name, fn)


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
