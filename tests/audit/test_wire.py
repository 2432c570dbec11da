"""Bytes on the wire, read from the compiled programs, against the closed formula of the plan."""

import jax.numpy as jnp
import pytest

from experiments.adversary.programs import SAMPLED, WHOLE, honest, interval_model
from fcjax import audit
from fcjax.sharded.interval import compatibility_all_gather, sent
from fcjax.sharded.sampling import Sampling

PROGRAMS = {
    "depth 1": {"depth": 1},
    "depth 2": {"depth": 2},
    "whole": WHOLE | {"layers": 1},
    "whole, sampled": WHOLE | {"layers": 1, "sampling": SAMPLED},
}


def by_hand(model, batch: int) -> float:
    """Elements that a node sends in a decode step, padded sizes, without the all-gather.

    (N-1)/N of each scatter and 2(N-1)/N of each all-reduce.
    """
    cfg, plan = model.plan.cfg, model.plan
    D, K, F, V = (plan.split(d).padded for d in "DKFV")
    qkv = K * (cfg.G + 2) * cfg.H
    layer = qkv + D + 2 * F + D + 2 * 2
    end = V + 2 if model.whole else qkv + 2
    exchanges = sum(e.width for e in model.sampling.exchanges) if model.whole else 0
    found = batch * (model.interval.depth * layer + end + 2 * exchanges)
    return found * (plan.nodes - 1) / plan.nodes


@pytest.mark.parametrize("nodes", [2, 3, 5, 8])
@pytest.mark.parametrize("name", PROGRAMS)
def test_elements_are_those_of_the_closed_formula(name, nodes):
    options = PROGRAMS[name]
    found = audit.audit_interval(*honest(nodes=nodes, batch=2, **options))
    model = interval_model(nodes, **options).model
    planned = sent(model, 2, 1)
    assert audit.sent_elements(found.before, nodes) == pytest.approx(planned, rel=1e-12)
    assert planned == pytest.approx(by_hand(model, 2), rel=1e-12)
    # All of these are of four bytes.
    assert audit.sent_bytes(found.before, nodes) == 4 * audit.sent_elements(found.before, nodes)
    after = [] if model.whole else [compatibility_all_gather(model.plan, 2, 1)]
    assert audit.sent_elements(found.after, nodes) == sum(c.sent for c in after)


def test_bytes_are_those_of_the_type_on_the_wire():
    """CPU sums bf16 in f32; the ids of the choice are of four bytes either way."""
    found = audit.audit_interval(*honest(**WHOLE, dtype=jnp.bfloat16, nodes=2, batch=2))
    model = interval_model(2, **WHOLE, dtype=jnp.bfloat16).model
    assert {c.dtype for c in found.before} == {"f32", "s32"}
    assert audit.sent_bytes(found.before, 2) == 4 * by_hand(model, 2)


def test_greedy_exchanges_cost_two_numbers_a_row():
    assert [e.width for e in Sampling().exchanges] == [1, 1]
    assert sum(e.width for e in SAMPLED.exchanges) == 16 * 15 + 4
