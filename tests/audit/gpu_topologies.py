"""The interval and the whole model compiled for GPUs that are not here, and audited.

Not among the tests that `make test` collects, since it needs XLA's GPU compiler in `.venv-aot`:
`make audit-gpu` makes that and runs this file.
"""

import dataclasses
import pathlib

import pytest

from experiments.adversary.programs import QWEN_15, SAMPLED
from fcjax import audit
from fcjax.decode import aot
from fcjax.sharded.contract import interval_contract
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.ownership import Plan
from fcjax.sharded.sampling import Sampling

PYTHON = pathlib.Path(".venv-aot/bin/python")


@pytest.mark.parametrize("topology", aot.TOPOLOGIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_programs_for_gpus_are_clean(topology, dtype):
    _, nodes = aot.parse_topology(topology)
    model = ShardedModel(Plan(QWEN_15, nodes), Interval(0))
    text = aot.compile_interval(
        topology, QWEN_15, Interval(0), batch=4, length=8, dtype=dtype, python=str(PYTHON)
    )
    found = audit.audit_interval(text, interval_contract(model, 4, 1, 8))
    assert found.ok, str(found)[:3000]
    assert len(found.before) == 8 and len(found.after) == 1


@pytest.mark.parametrize("topology", ["l4x2", "l4x3", "h100x8"])
@pytest.mark.parametrize(
    ("batch", "tokens", "sampling", "dtype"),
    [
        (1, 1, Sampling(), "bfloat16"),
        (1, 1, SAMPLED, "bfloat16"),
        (3, 1, Sampling(), "float32"),
        (3, 1, SAMPLED, "float32"),
        (2, 16, Sampling(), "bfloat16"),
        (1, 16, Sampling(), "float32"),
    ],
)
def test_the_whole_model_is_clean(topology, batch, tokens, sampling, dtype):
    whole(topology, 2, batch, tokens, sampling, dtype)


@pytest.mark.parametrize("tokens", [1, 16])
def test_the_whole_model_with_all_its_layers(tokens):
    whole("l4x2", QWEN_15.L, 1, tokens, SAMPLED, "bfloat16")


def whole(topology, layers, batch, tokens, sampling, dtype):
    _, nodes = aot.parse_topology(topology)
    cfg = dataclasses.replace(QWEN_15, L=layers)
    model = ShardedModel(Plan(cfg, nodes), Interval(0, layers), sampling)
    text = aot.compile_interval(
        topology, cfg, Interval(0, layers), batch=batch, tokens=tokens, length=64,
        sampling=sampling, dtype=dtype, python=str(PYTHON),
    )
    found = audit.audit_interval(text, interval_contract(model, batch, tokens, 64))
    assert found.ok, str(found)[:3000]
    head = 2 + len(sampling.exchanges) if tokens == 1 else 0
    assert len(found.before) == 6 * layers + head and not found.after
