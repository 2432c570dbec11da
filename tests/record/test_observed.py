"""What runs in a pass besides the programs that were handed out, and what the host reads, is found.

Each plant is in one step of a run, through the real decoder and recorder.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.decode.decoder import Decoder
from fcjax.record.host_reads import HostReads
from fcjax.verify.run import Verification
from tests import models, runs

N = 2
everywhere = jax.jit(lambda x: 1 * x)
helper = jax.jit(lambda x: jnp.sin(x))
product = jax.jit(lambda x: x @ x)


def replicated(x):
    return jax.NamedSharding(x.sharding.mesh, jax.P())


def gather(decoder, values):
    """The complete residual on every node, freed before anybody looks."""
    x = values["residual"]
    jax.jit(everywhere, out_shardings=replicated(x))(x).delete()


def one_node(decoder, values):
    helper(jax.device_put(np.ones(3, np.float32), jax.devices()[1]))


def eager(decoder, values):
    (values["residual"] * values["residual"]).delete()


def twice(decoder, values):
    (inside,) = [x for x in decoder.programs.get(1) if x[0].name == "interval"]
    kept = dict(values)
    Decoder.run_once(decoder, *inside, values)
    values.update(kept)


def unfinished(decoder, values):
    """One instruction that takes longer than the pass."""
    decoder.left = product(jax.device_put(np.ones((2500, 2500), np.float32), jax.devices()[0]))


def other_nodes(decoder, values):
    x = values["residual"]
    devices = list(x.sharding.mesh.devices.flat)[::-1]
    mesh = jax.make_mesh((N,), ("node",), devices=devices,
                         axis_types=(jax.sharding.AxisType.Explicit,))
    jax.device_put(x, jax.NamedSharding(mesh, x.sharding.spec)).delete()


def one_shard(decoder, values):
    jax.device_put(values["residual"].addressable_shards[0].data, jax.devices()[1]).delete()


# What is planted: after which program, and the words of the fault.
PROGRAMS = {
    "a second program gathers the residual and frees it": ("interval", gather, "got jit__lambda"),
    "before the interval": ("before", gather, "got jit__lambda 1 times on devices [0, 1]"),
    "after the last program": ("after", gather, "got jit__lambda 1 times on devices [0, 1]"),
    "a helper on one node": ("interval", one_node, "got jit__lambda 1 times on devices [1]"),
    "an operation by itself": ("interval", eager, "got jit_multiply 1 times"),
    "the interval twice": (
        "interval", twice, "program interval: expected 1 executions of jit_run_interval, got 2",
    ),
    "shards to other nodes": ("interval", other_nodes, "got jit__device_put_reshard 1 times"),
    "a shard to another node": ("interval", one_shard, "expected no copy between devices, got 1"),
    # The last one, as it runs on into what follows.
    "left running at the end": ("after", unfinished, "to end in the pass, got 1 that did not"),
}


def parts(x):
    return [np.asarray(s.data) for s in x.addressable_shards]


READS = {
    "device_get": jax.device_get,
    "NumPy": np.asarray,
    "each shard": parts,
    "one shard": lambda x: np.asarray(x.addressable_data(1)),
    "all shards, by another name": lambda x: [s.data for s in x.global_shards],
    "begun only": lambda x: x.copy_to_host_async(),
    "an inner list": lambda x: [np.asarray(part) for part in x._arrays],
    "an inner value": lambda x: x._value,
    "as text": repr,
    "a copy on every node": lambda x: jax.device_put(x, replicated(x)).delete(),
    "lists": lambda x: x.tolist(),
    "bytes": lambda x: x.__array__().tobytes(),
    "an address": lambda x: x.addressable_shards[0].data.unsafe_buffer_pointer(),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The lines of a run with one plant in each step, by the plant's name, and the folder."""
    plants = [*PROGRAMS.items()]
    for name, read in READS.items():
        plants.insert(0, (name, ("interval", lambda _, values, f=read: f(values["residual"]), "")))
    plants.insert(0, ("none", ("", None, "")))
    model = runs.write_model(tmp_path_factory.mktemp("planted") / "model", models.UNTIED)
    once, step, passes = Decoder._run, Decoder.step, []

    def run(decoder, program, executable, values):
        once(decoder, program, executable, values)
        after, plant, _ = plants[len(passes) - 1][1]
        if program.name == after:
            plant(decoder, values)

    def stepped(*arguments):
        passes.append(arguments)
        return step(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "run_once", once, raising=False)
        patch.setattr(Decoder, "_run", run)
        patch.setattr(Decoder, "step", stepped)
        job = runs.job(model, ((3,),), len(plants), nodes=N, compared=False)
        draws = [255 if name in READS else 0 for name, _ in plants]
        folder = runs.record(tmp_path_factory.mktemp("planted") / "run", job, draws=draws)
    lines = runs.read_lines(folder / "start_0/steps.jsonl")
    return dict(zip((name for name, _ in plants), lines, strict=True)), folder


def test_an_honest_step_has_no_fault(planted):
    line = planted[0]["none"]
    assert line["faults"] == [] and line["traced"]
    assert line["ran"]["programs"] == [
        {"program": name, "module": f"jit_run_{name}", "runs": 1, "devices": [0, 1], "faults": []}
        for name in ("before", "interval", "after")
    ]
    assert (line["ran"]["unfinished"], line["ran"]["copies"]) == (0, 0)
    # The recorder looks at the values at the entry and the exit, and the token is chosen.
    assert {row["as"] for row in line["ran"]["to_host"]} == {"public", "observation"}
    assert [r["dtype"] for r in line["ran"]["to_host"] if r["as"] == "public"] == ["int32"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_planted_program_fails_the_step_for_its_reason(planted, name):
    line = planted[0][name]
    assert any(PROGRAMS[name][2] in fault for fault in line["faults"]), line["faults"]
    assert not line["passed"]
    # Nobody else notices: nothing is left of it, and no number is another.
    if PROGRAMS[name][1] is gather:
        assert len(line["faults"]) == 1


@pytest.mark.parametrize("name", READS)
def test_a_read_of_state_by_the_host_fails_the_step(planted, name):
    line = planted[0][name]
    wanted = "expected no read by the host while the pass ran, got float32[1, 1, "
    assert line["faults"] and all(fault.startswith(wanted) for fault in line["faults"])
    assert not line["passed"] and not line["traced"]  # in a pass that the profiler does not see


def test_verify_and_the_report_say_so(planted):
    lines, folder = planted
    found = Verification(folder).check()
    at = {name: number for number, name in enumerate(lines, 1)}
    for name in ("an operation by itself", "each shard", "the interval twice"):
        assert any(f"steps.jsonl line {at[name]}" in fault for fault in found), name
    assert (
        f"{len(lines) - 1} of {len(lines)} passes with another program, copy or read"
        in (folder / "report.html").read_text()
    )


def test_the_doors_are_put_back():
    x = jnp.ones(3)
    before = dict(vars(type(x)))
    reads = HostReads(type(x), 4)
    with pytest.raises(KeyError), reads:
        x.addressable_shards  # noqa: B018
        raise KeyError
    assert dict(vars(type(x))) == before
    assert [row["as"] for row in reads.rows()] == ["undeclared"]
    with reads, reads.declared():
        jax.device_get(x)
    assert {row["as"] for row in reads.rows()} == {"observation"}
    with reads:
        jax.device_get(jnp.arange(4))
    assert {row["as"] for row in reads.rows()} == {"public"}
