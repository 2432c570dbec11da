"""The interval compiled for GPUs that are not here, and audited.

Not among the tests that `make test` collects, since it needs XLA's GPU compiler in `.venv-aot`:
`make audit-gpu` makes that and runs this file.
"""

import pathlib

import pytest

from fcjax import aot, audit
from fcjax.model import Interval, Model
from fcjax.ownership import Plan
from tests.audit.programs import QWEN_15

PYTHON = pathlib.Path(".venv-aot/bin/python")


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
