"""One start: what it records, what it refuses, and that a fault of a pass is in its record."""

import json

import numpy as np
import pytest

from fcjax import audit, cold_starts
from fcjax.decode import parity
from fcjax.record import reader, run_folder
from fcjax.record.start import Start
from fcjax.sharded import ops
from fcjax.sharded.interval import Interval
from fcjax.verify.run import Verification
from tests import models, runs


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return runs.write_model(tmp_path_factory.mktemp("run") / "model", models.UNTIED)


def read(folder, name):
    return json.loads((folder / name).read_text())


def test_a_start_without_a_reference_says_that_nothing_was_compared(model, tmp_path):
    job = runs.job(model, ((3, 4),), 2, compared=False)
    folder = runs.record(tmp_path / "run", job)
    assert Verification(folder).check() == []
    lines = runs.read_lines(folder / "start_0/steps.jsonl")
    assert all(x["parity"] is None and "reference" not in x["live"]["exit"] for x in lines)
    summary = read(folder, "start_0/summary.json")
    assert summary["worst"] is None and summary["caches"]["layers"] is None
    assert read(folder, "summary.json")["verdict"].endswith("cold start, not compared")
    assert "The numbers were not compared with an unsharded reference." in job.limits


def test_two_rows_end_early_and_the_record_says_so(model, tmp_path):
    """An end-of-text id ends a row; the run stops when both have ended."""
    prompts = ((("a", (3, 4, 5)), ("b", (7,))),)
    free = runs.record(tmp_path / "free", runs.job(model, steps=6, prompts=prompts, cold_starts=1,
                                                   length=9))
    tokens = np.array(read(free, "start_0/summary.json")["tokens"])
    assert tokens.shape == (2, 6)
    ends = tuple(int(row[2]) for row in tokens)
    first = [int(np.flatnonzero(np.isin(row, ends))[0]) for row in tokens]
    job = runs.job(model, steps=6, prompts=prompts, cold_starts=1, length=9, eos=ends)
    folder = runs.record(tmp_path / "ends", job)
    summary = read(folder, "start_0/summary.json")
    assert (summary["steps"], summary["ended"]) == (max(first) + 1, "eos")
    assert summary["tokens"] == tokens[:, : max(first) + 1].tolist()
    assert summary["trace"] is None and Verification(folder).check() == []


def test_a_figure_above_the_bound_fails_the_step_the_start_and_the_run(
    model, tmp_path, monkeypatch
):
    wrong = iter([0.25, float("inf")])
    monkeypatch.setattr(parity, "compare", lambda *a: {"residual": next(wrong)})
    folder = runs.record(tmp_path / "run", runs.job(model, ((3,),), 2))
    lines = runs.read_lines(folder / "start_0/steps.jsonl")
    said = "parity of residual: expected at most 1e-05, got"
    assert [x["faults"] for x in lines] == [[f"{said} 2.5e-01"], [f"{said} inf"]]
    # JSON has no infinity.
    assert [x["parity"] for x in lines] == [{"residual": 0.25}, {"residual": "inf"}]
    summary = read(folder, "start_0/summary.json")
    assert (summary["steps"], summary["passed_steps"], summary["passed"]) == (2, 0, False)
    total = read(folder, "summary.json")
    assert not total["passed"] and "0 of 2 audited steps passed" in total["verdict"]
    found = Verification(folder).check()
    assert "summary.json: field passed: expected True, got False" in found


def test_a_failed_audit_leaves_its_certificate_and_no_step(model, tmp_path, monkeypatch):
    import jax

    def all_reduce(y_U, axis):  # every node receives the complete sum
        y, block = jax.lax.psum(y_U, "node"), y_U.shape[axis] // jax.lax.axis_size("node")
        start = jax.lax.axis_index("node") * block
        return jax.lax.dynamic_slice_in_dim(y, start, block, axis)

    monkeypatch.setattr(ops, "scatter", all_reduce)
    job = runs.job(model, ((3,),), 1)
    folder = tmp_path / "run"
    with pytest.raises(audit.Failed, match="all-reduce-of-state"):
        with cold_starts.recorded_here(folder, job) as start:
            start.prepare()
    kept = folder / "start_0_failed_0"
    assert not read(kept, "audit_T1/certificate.json")["verdict"]["ok"]
    assert read(kept, "failure.json")["reason"] == "the audit failed"
    assert not (kept / "steps.jsonl").exists() and not (folder / "start_0").exists()
    assert not (folder / "manifest.json").exists()


def test_a_run_of_one_start_is_recorded_in_this_process(model, tmp_path):
    folder = tmp_path / "run"
    with cold_starts.recorded_here(folder, runs.job(model, ((3,),), 2)) as start:
        start.prepare()
        start.load()
        with pytest.raises(ValueError, match="got one in use"):
            with run_folder.lock(folder):
                pass
        start.decode()
    assert start.summary == read(folder, "start_0/summary.json")
    assert reader.summary(folder)["verdict"].startswith("2 of 2 audited steps passed")
    assert Verification(folder).check() == []
    with pytest.raises(ValueError, match="cold starts: expected 1 in this process, got 2"):
        with cold_starts.recorded_here(tmp_path / "two", runs.job(model)):
            pass
    assert not (tmp_path / "two").exists()


def test_no_complete_state_is_left_when_a_pass_enters_the_interval(model, tmp_path):
    job = runs.job(model, ((3, 4, 5),), interval=Interval(1, 2), nodes=3)
    folder = runs.record(tmp_path / "run", job)
    lines = runs.read_lines(folder / "start_0/steps.jsonl")
    assert all("complete" not in x["live"]["entry"] for x in lines)
    assert all(x["live"]["exit"]["complete"]["arrays"] == 2 for x in lines)
    assert all(x["live"][when]["unaccounted"] == [] for x in lines for when in ("entry", "exit"))
    # Three KV groups on three nodes, and 46 coordinates in runs of 16: the last has padding.
    entry = lines[1]["ledger"][0]["owners"]["residual"]
    assert [s["coordinates"] for s in entry["shards"]] == [[0, 16], [16, 32], [32, 46]]
    assert [(s["padding"], s["padding_zero"]) for s in entry["shards"]][2] == (2, True)
    assert {x["caches"]["addresses"][0][0][0] for x in lines} == {
        lines[0]["caches"]["addresses"][0][0][0]
    }
    summary = read(folder, "start_0/summary.json")
    assert summary["caches"]["padding_zero"] and summary["caches"]["worst"] < 1e-5
    assert [e["device"] for e in summary["trace"]["executions"]] == [0, 1, 2]
    assert Verification(folder).check() == []


def test_a_run_never_writes_into_an_existing_folder(model, tmp_path):
    job = runs.job(model, ((3,),), 1)
    folder = cold_starts.create(tmp_path / "run", job)
    with pytest.raises(ValueError, match="workdir: expected a new folder, got an existing one"):
        cold_starts.create(tmp_path / "run", job)
    Start(folder, job, 0)
    with pytest.raises(ValueError, match="start 0: expected none before, got one"):
        Start(folder, job, 0)


def test_other_weights_than_the_jobs_are_refused(model, tmp_path):
    job = runs.job(model, ((3,),), 1, weights_sha256="0" * 64)
    folder = cold_starts.create(tmp_path / "run", job)
    with pytest.raises(ValueError, match="weights: expected digest 0000"):
        Start(folder, job, 0).prepare()


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_made(model):
    with pytest.raises(ValueError, match="cache: expected at most 4 tokens, got a prompt of 3"):
        runs.job(model, ((3, 4, 5),), 2, length=4)
