"""Honest programs pass, and their collectives are those of the operator table."""

import jax.numpy as jnp
import pytest

from fcjax import audit
from tests.audit.programs import QWEN_05, QWEN_15, SMOL, TINY, honest

CASES = {
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


@pytest.mark.parametrize("name", CASES)
def test_honest(name):
    options = CASES[name]
    found = audit.audit_interval(*honest(**options))
    assert found.ok, str(found)[:4000]
    depth = options.get("depth", 1)
    kinds = [c.kind for c in found.before]
    assert kinds.count("reduce-scatter") == 4 * depth + 1
    assert kinds.count("all-reduce") == 2 * depth + 1
    assert [c.kind for c in found.after] == ["all-gather"]


def test_the_collectives_name_their_operators():
    operators = [
        c.operator for c in audit.audit_interval(*honest()).before if c.kind == "reduce-scatter"
    ]
    layer = [f"layers.0.{leaf}" for leaf in ("qkv", "out", "gate_up", "down")]
    assert operators == [*layer, "layers.1.qkv"]


def test_padding_is_not_in_the_way():
    # 2 KV groups on 3 nodes, 38 coordinates in runs of 13, 62 in runs of 21: all padded.
    assert TINY.K % 3 and TINY.D % 3 and TINY.F % 3
    assert audit.audit_interval(*honest(nodes=3)).ok
