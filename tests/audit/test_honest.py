"""Honest programs pass, and their collectives are those of the operator table."""

import pytest

from fcjax import audit
from tests.audit.programs import HONEST, TINY, honest


@pytest.mark.parametrize("name", HONEST)
def test_honest(name):
    options = HONEST[name]
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
