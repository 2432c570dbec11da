"""The collectives that ran, by a profiler trace, are those of the audited program."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from experiments.adversary.programs import LENGTH, WHOLE, interval_model
from fcjax import audit
from fcjax.audit import trace
from fcjax.sharded import programs
from fcjax.sharded.contract import interval_contract
from fcjax.sharded.sampling import Sampling

N, STEPS = 3, 4


# Options of the model, and the collectives of a step: scatters, all-reduces, all-gathers.
PROGRAMS = {
    "a layer": ({}, [5, 3, 1]),
    "whole, sampled": (WHOLE | {"sampling": Sampling(1.0, 5)}, [9, 5 + 10, 0]),
}


@pytest.fixture(scope="module", params=PROGRAMS)
def traced(request, tmp_path_factory):
    """The audited program, the executions of some steps, and how many collectives of each kind."""
    folder = tmp_path_factory.mktemp("trace")
    options, kinds = PROGRAMS[request.param]
    layout = interval_model(N, **options)
    program = programs.interval(layout.model, 1)
    compiled = programs.compile(program, layout, 2, 1, LENGTH)
    contract = interval_contract(layout.model, 2, 1, LENGTH)
    assert audit.audit_compiled(compiled, contract).ok

    def zeros(tree):
        return jax.tree.map(lambda t: jnp.zeros(t.shape, t.dtype, device=t.sharding), tree)

    params = zeros({path: layout.param(path) for path in program.params})
    arguments = [zeros(layout.value(name, 2, 1)) for name in program.arguments]
    caches = zeros([layout.cache(2, LENGTH)] * len(program.layers))
    *_, caches = compiled(params, caches, *arguments)
    jax.block_until_ready(caches)
    with jax.profiler.trace(folder):
        for _ in range(STEPS):
            *_, caches = compiled(params, caches, *arguments)
            jax.block_until_ready(caches)
    module = audit.parse(compiled.as_text())
    return trace.read(folder), module, trace.read(folder).of(module.name), kinds


def test_each_device_ran_each_collective_once_a_step(traced):
    _, module, found, expected = traced
    assert trace.faults(module, found, N, STEPS) == []
    assert len(found) == N * STEPS
    opcodes = {i.name: i.opcode for i in module.entry.instructions}
    kinds = [opcodes[name] for name in trace.planned(module)]
    assert [kinds.count(k) for k in ("reduce-scatter", "all-reduce", "all-gather")] == expected


def test_another_execution_is_noticed(traced):
    _, module, found, _ = traced
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


def test_nothing_else_is_in_the_trace(traced):
    seen, module, found, _ = traced
    assert trace.others(seen, [module.name]) == {}
    assert (seen.launches, seen.copies) == (N * STEPS, 0)
    # The name of another program, and that of none.
    assert trace.others(seen, ["jit_other"]) == {module.name: found}
    unnamed = dataclasses.replace(found[0], module="", instructions={})
    assert trace.others(trace.Trace((unnamed,), 1, 0), [module.name]) == {"": [unnamed]}


def test_a_program_that_executes_nothing_and_one_on_one_device_are_seen(tmp_path):
    """Both are launched, though the first has no instruction that would leave an event."""
    kinds = {"nothing": jax.jit(lambda x: x, donate_argnums=0), "sin": jax.jit(jnp.sin)}
    modules = {}
    for name, program in kinds.items():
        x = jnp.ones(3, device=jax.devices()[1])
        compiled = program.lower(x).compile()
        with jax.profiler.trace(tmp_path / name):
            jax.block_until_ready(compiled(x))
        seen = trace.read(tmp_path / name)
        (modules[name],) = [e.module for e in seen.executions]
        assert seen.executions[0].device == seen.launches == 1
    assert modules == {"nothing": "", "sin": "jit_sin"}


def test_a_trace_without_the_program(traced, tmp_path):
    assert trace.faults(traced[1], traced[0].of("jit_other"), N, STEPS) == [
        f"expected {STEPS} executions of {traced[1].name}, got 0"
    ]
    with pytest.raises(audit.Unauditable, match="got none"):
        trace.read(tmp_path)
