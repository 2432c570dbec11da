"""Honest programs pass, and their collectives are those of the operator table."""

import jax.numpy as jnp
import pytest

from experiments.adversary.programs import HONEST, SAMPLED, TINY, WHOLE, honest
from fcjax import audit
from fcjax.audit import identity
from fcjax.sharded.sampling import Sampling


@pytest.mark.parametrize("name", HONEST)
def test_honest(name):
    options = HONEST[name]
    text, contract = honest(**options)
    found = audit.audit_interval(text, contract)
    assert found.ok and found.compared, str(found)[:4000]
    if options.get("cfg", TINY).D == TINY.D:  # on other random inputs too
        module = audit.parse(text)
        assert not identity.check(module, contract.signature, contract.definition, seed=1)
    whole = options.get("depth", 1) is None
    depth = 2 if whole else options.get("depth", 1)
    end = 0 if whole and options.get("tokens", 1) > 1 else 1  # a prefill has no head
    exchanges = options.get("sampling", Sampling()).exchanges if whole and end else ()
    kinds = [c.kind for c in found.before]
    assert kinds.count("reduce-scatter") == 4 * depth + end
    assert kinds.count("all-reduce") == 2 * depth + end + len(exchanges)
    assert [c.kind for c in found.after] == ([] if whole else ["all-gather"])


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


def test_the_exchanges_are_listed_by_name():
    found = audit.audit_interval(*honest(**WHOLE, sampling=SAMPLED))
    names = [c.operator for c in found.before if c.dtype == "s32" or c.received != 1]
    listed = [e.name for e in SAMPLED.exchanges]
    assert [n for n in names if n in listed] == [
        *["top-k count"] * 8, *["top-p mass"] * 8, "chosen token",
    ]
    assert "largest logit" in found.text("x") and "all-gather" not in found.text("x")
    chosen = found.before[-1]
    assert (chosen.kind, chosen.sent, chosen.dtype) == ("all-reduce", 1, "s32")
    assert "best value (18)" in chosen.reads and "embed" in chosen.reads


def test_a_program_in_another_type_is_another():
    narrow, wide = honest(dtype=jnp.bfloat16), honest()
    for text, contract in ((narrow[0], wide[1]), (wide[0], narrow[1])):
        assert {v.code for v in audit.audit_interval(text, contract).violations} == {"wrong-type"}
