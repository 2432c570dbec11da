"""One axis at a time: what may be held against what, and what is refused."""

import dataclasses
import itertools

import pytest

from fcjax.model.config import QWEN25
from fcjax.record import baseline
from fcjax.record.job import Job
from fcjax.sharded.interval import Interval
from fcjax.sharded.sampling import Sampling

L4 = "NVIDIA L4"


@pytest.fixture
def seed_job():
    """The published experiment as a job of ours."""
    return Job(
        command="cold_starts", flags={}, model_path="models/qwen", weights_sha256="a" * 64,
        cfg=QWEN25["1.5b"], nodes=2, interval=Interval(12), sampling=Sampling(), platform="cuda",
        hardware=L4, dtype="float32", length=100, cold_starts=5, steps=50, seed=0,
        prompts=((("text", (1, 2)),),) * 5,
    )


CHANGES = {
    "depth": {"interval": Interval(12, 2)},
    "nodes": {"nodes": 3},
    "parameters": {"cfg": QWEN25["0.5b"], "dtype": "bfloat16", "length": 200},
}


def against(job, here, axis=None):
    return baseline.against(here, "runs/first", baseline.describe(job), axis)


def test_the_published_experiment_differs_in_nothing_from_itself(seed_job):
    found = baseline.against(seed_job, "seed", baseline.seed())
    assert (found["axis"], found["differences"]) == (None, [])
    assert baseline.words(found) == "seed; a repetition of it"


@pytest.mark.parametrize("axis", CHANGES)
def test_one_axis_is_recorded_with_all_that_differs_on_it(seed_job, axis):
    here = dataclasses.replace(seed_job, **CHANGES[axis])
    found = against(seed_job, here)
    assert found["axis"] == axis and against(seed_job, here, axis) == found
    assert {d["class"] for d in found["differences"]} == {axis}
    what = {
        "depth": ["depth"],
        "nodes": ["nodes"],
        "parameters": ["model", "dtype", "prompt tokens"],
    }
    assert [d["what"] for d in found["differences"]] == what[axis]
    if axis == "nodes":
        assert baseline.words(found) == "runs/first; nodes (nodes 2 -> 3)"


@pytest.mark.parametrize("pair", list(itertools.combinations(CHANGES, 2)))
def test_two_axes_are_refused_with_both_differences(seed_job, pair):
    here = dataclasses.replace(seed_job, **CHANGES[pair[0]], **CHANGES[pair[1]])
    with pytest.raises(ValueError) as e:
        against(seed_job, here)
    message = str(e.value)
    assert message.startswith("baseline: expected a run that differs from runs/first in one axis")
    assert all(f"{axis} (" in message for axis in pair) and "\n" not in message


def test_the_axis_that_was_named_must_be_the_one(seed_job):
    three = dataclasses.replace(seed_job, nodes=3)
    with pytest.raises(ValueError, match=r"axis: expected .* in depth, got nodes \(nodes 2 -> 3\)"):
        against(seed_job, three, "depth")
    with pytest.raises(ValueError, match="axis: expected .* in nodes, got no difference"):
        against(seed_job, seed_job, "nodes")


def test_how_much_evidence_there_is_is_no_axis(seed_job):
    here = dataclasses.replace(seed_job, steps=10, length=60, nodes=3)
    found = against(seed_job, here)
    assert found["axis"] == "nodes"
    assert {"class": "amount", "what": "steps", "baseline": 50, "here": 10} in found["differences"]


def test_emulated_nodes_are_other_hardware_and_said_so(seed_job):
    here = dataclasses.replace(
        seed_job, platform="cpu", hardware="emulated nodes on one CPU, sharing its memory"
    )
    found = baseline.against(here, "seed", baseline.seed())
    assert found["axis"] == "parameters"
    assert L4 in baseline.words(found) and "sharing its memory" in baseline.words(found)
    with pytest.raises(ValueError, match="got 2: nodes .*; parameters "):
        baseline.against(dataclasses.replace(here, nodes=3), "seed", baseline.seed())


def test_the_whole_model_is_one_depth_whatever_its_layers(seed_job):
    whole = dataclasses.replace(seed_job, interval=Interval(0, 28))
    assert baseline.describe(whole)["depth"] == {"depth": "all"}
    # It begins at layer 0 and not at 12, which is no second difference.
    assert [d["what"] for d in against(seed_job, whole, "depth")["differences"]] == ["depth"]
    assert baseline.words(baseline.none()) == "none: this run is its own baseline"
