"""The collectives that ran, by a profiler trace, are those of the audited program."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from fcjax import audit, ownership
from fcjax.audit import trace
from fcjax.model import Interval, Model
from fcjax.ownership import Plan
from tests.audit.programs import LENGTH, TINY

N, STEPS = 3, 4


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The audited program, and the executions of some steps."""
    folder = tmp_path_factory.mktemp("trace")
    model = Model(Plan(TINY, N), Interval(0), ownership.make_mesh(N))
    compiled = model.compile(model.inside, 2, 1, LENGTH)
    contract = audit.interval_contract(model, 2, 1, LENGTH)
    assert audit.audit_compiled(compiled, contract).ok

    def zeros(tree):
        return jax.tree.map(lambda t: jnp.zeros(t.shape, t.dtype, device=t.sharding), tree)

    params = zeros({path: model.param(path) for path in model.inside.params})
    residual = zeros(model.value("residual", 2, 1))
    caches = zeros([model.cache(2, LENGTH)])
    pos = jax.device_put(jnp.int32(0), jax.NamedSharding(model.mesh, jax.P()))
    *_, caches = compiled(params, caches, residual, pos)
    jax.block_until_ready(caches)
    with jax.profiler.trace(folder):
        for _ in range(STEPS):
            *_, caches = compiled(params, caches, residual, pos)
            jax.block_until_ready(caches)
    module = audit.parse(compiled.as_text())
    return folder, module, trace.executions(folder, module.name)


def test_each_device_ran_each_collective_once_a_step(traced):
    _, module, found = traced
    assert trace.faults(module, found, N, STEPS) == []
    assert len(found) == N * STEPS
    opcodes = {i.name: i.opcode for i in module.entry.instructions}
    kinds = [opcodes[name] for name in trace.planned(module)]
    assert [kinds.count(k) for k in ("reduce-scatter", "all-reduce", "all-gather")] == [5, 3, 1]


def test_another_execution_is_noticed(traced):
    _, module, found = traced
    scatter = next(name for name in trace.planned(module) if "scatter" in name)
    changes = {
        "twice": found[0].instructions | {scatter: 2},
        "never": {n: k for n, k in found[0].instructions.items() if n != scatter},
        "another program's": found[0].instructions | {"all-gather.99": 1},
    }
    for instructions in changes.values():
        changed = [dataclasses.replace(found[0], instructions=instructions), *found[1:]]
        assert len(trace.faults(module, changed, N, STEPS)) == 1
    assert len(trace.faults(module, found[1:], N, STEPS)) == 1
    assert len(trace.faults(module, found, N, STEPS + 1)) == 1


def test_a_trace_without_the_program(traced, tmp_path):
    with pytest.raises(audit.Unauditable, match="got none"):
        trace.executions(traced[0], "jit_other")
    with pytest.raises(audit.Unauditable, match="got none"):
        trace.executions(tmp_path, traced[1].name)
