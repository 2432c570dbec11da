"""Topologies by name, and the interval compiled for GPUs where their compiler is installed."""

import pathlib

import pytest

from fcjax import aot, audit
from fcjax.model import Interval, Model
from fcjax.ownership import Plan
from tests.audit.programs import QWEN_15

PYTHON = pathlib.Path(".venv-aot/bin/python")  # `make audit-gpu` makes it


def test_names():
    assert aot.parse_topology("l4x2") == ("l4", 2)
    assert all(aot.parse_topology(name) for name in aot.TOPOLOGIES)
    for name in ("l4", "l4x0", "x2", "v100x2", "l4x2x2", "L4x2", ""):
        with pytest.raises(ValueError, match="topology: expected one of"):
            aot.parse_topology(name)


def test_a_compiler_that_is_not_there_is_said_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="the compiler failed") as e:
        aot.compile_interval("l4x2", QWEN_15, Interval(0), length=8, python="false")
    assert "\n" not in str(e.value)


@pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-aot: `make audit-gpu` makes it")
@pytest.mark.parametrize("topology", aot.TOPOLOGIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_programs_for_gpus_are_clean(topology, dtype):
    _, nodes = aot.parse_topology(topology)
    model = Model(Plan(QWEN_15, nodes), Interval(0), mesh=None)
    text = aot.compile_interval(
        topology, QWEN_15, Interval(0), batch=4, length=8, dtype=dtype, python=str(PYTHON)
    )
    found = audit.audit_interval(text, audit.interval_contract(model, 4, 1, 8))
    assert found.ok, str(found)[:3000]
    assert len(found.before) == 8 and len(found.after) == 1
