"""Runs of several processes that are cut off in every way, and go on without losing anything."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from fcjax import cold_starts, files
from fcjax.record import reader, run_folder
from fcjax.record.chain import Chain
from fcjax.verify.run import Verification
from tests import runs

ROOT = pathlib.Path(__file__).parents[1]
STEPS = 400  # of the packaged model: seconds, so that a process is cut off in the middle


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return runs.write_model(tmp_path_factory.mktemp("cold") / "model")


def program(name, *arguments, limit=None):
    """A program of this repository in a process group of its own.

    With `limit` no file may become larger than so many bytes: a disk that fills.
    """
    command = [sys.executable, "-m", f"experiments.{name}", *map(str, arguments)]
    # What a shell starts in the background ignores Ctrl-C, and so would all that it starts.
    command = ["env", "--default-signal=INT", *command]
    if limit is not None:
        command = ["prlimit", f"--fsize={limit}", *command]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )


def ended(process) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def wait_for(what, process=None):
    """Until it is true; fails if the process ends before."""
    for _ in range(6000):
        found = what()
        if found:
            return found
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError("it never came")


def recorded(folder, index, attempt):
    """Whether that attempt at a start has recorded a pass; an earlier one's folder is put aside
    when the run goes on."""
    start = folder / f"start_{index}"

    def found():
        try:
            there = json.loads((start / "environment.json").read_text())["attempt"]
            lines = (start / "steps.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:  # not there yet, or just put aside
            return False
        return there == attempt and lines > 0

    return found


def is_free(folder) -> bool:
    try:
        with run_folder.lock(folder):
            return True
    except ValueError:
        return False


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory):
    """Two starts, ended by Ctrl-C, by the end of a start's process, by the end of the runner's."""
    folder = tmp_path_factory.mktemp("cold") / "run"
    cold_starts.create(folder, runs.job("weights/tiny", ((3, 4, 5), (7,)), STEPS))
    resume = ("cold_starts", "--resume", f"--workdir={folder}")
    said = []

    runner = program(*resume)
    wait_for(lambda: (folder / "start_0").exists(), runner)
    assert not is_free(folder)
    os.killpg(runner.pid, signal.SIGINT)
    said.append(ended(runner))

    runner = program(*resume)
    wait_for(recorded(folder, 0, 1), runner)
    there = json.loads((folder / "start_0/environment.json").read_text())
    os.kill(there["process"]["pid"], signal.SIGKILL)
    said.append(ended(runner))

    runner = program(*resume)
    wait_for(recorded(folder, 1, 0), runner)
    first = (folder / "start_0/steps.jsonl").read_bytes()
    runner.kill()  # its start notices, and ends
    runner.communicate()
    wait_for(lambda: is_free(folder))

    runner = program(*resume)
    said.append(ended(runner))
    return folder, said, first


def test_every_end_is_said_and_the_run_goes_on(cut_off):
    folder, said, _ = cut_off
    interrupted, killed, complete = said
    assert interrupted[0] == 1 and "interrupted. Go on with --resume" in interrupted[1]
    assert killed[0] == 1 and "its process was ended by signal 9" in killed[1]
    assert f"--resume --workdir={folder}" in killed[1]
    assert complete[0] == 0, complete
    total = 2 * STEPS
    assert f"{total} of {total} audited steps passed over 2 cold starts" in complete[1]


def test_no_step_counts_twice_and_no_failed_start_is_hidden(cut_off):
    folder, _, first = cut_off
    assert (folder / "start_0/steps.jsonl").read_bytes() == first  # complete, and never touched
    failed = sorted(p.name for p in folder.glob("*_failed_*"))
    assert failed == ["start_0_failed_0", "start_0_failed_1", "start_1_failed_0"]
    found = {name: json.loads((folder / name / "failure.json").read_text()) for name in failed}
    assert found["start_0_failed_0"]["reason"] == "interrupted"
    assert found["start_0_failed_1"]["exit_code"] == -signal.SIGKILL
    assert "cut off" in found["start_1_failed_0"]["reason"]
    total = json.loads((folder / "summary.json").read_text())
    assert [f["folder"] for f in total["failed_starts"]] == failed
    assert total["recorded"] == total["passed_steps"] == 2 * STEPS
    assert [s["attempt"] for s in total["starts"]] == [2, 1]


def test_each_start_was_a_process_without_a_compilation_cache(cut_off):
    folder, _, _ = cut_off
    there = [json.loads((folder / f"start_{i}/environment.json").read_text()) for i in range(2)]
    assert there[0]["process"]["pid"] != there[1]["process"]["pid"]
    assert [e["compilation_cache"] for e in there] == [False, False]
    assert there[0]["executables"] == there[1]["executables"]  # compiled anew, and the same


def test_it_is_verified_and_its_steps_run_again(cut_off):
    folder, _, _ = cut_off
    code, out, err = ended(program("verify", folder, "--recompute=3"))
    assert code == 0, out + err
    total = 2 * STEPS
    assert f"verified, {total}/{total}: {total} of {total} audited steps passed" in out
    assert "3 compared bit for bit" in out and "It is not a confidentiality guarantee" in out


def test_a_finished_run_is_not_run_again(cut_off):
    folder, _, _ = cut_off
    before = (folder / "manifest.json").read_bytes()
    code, out, _ = ended(program("cold_starts", "--resume", f"--workdir={folder}", "--nodes=2"))
    # The job was made by hand, so it has no flags that --nodes could agree with.
    assert code == 2 and (folder / "manifest.json").read_bytes() == before
    code, out, _ = ended(program("cold_starts", "--resume", f"--workdir={folder}"))
    assert code == 0 and f"{2 * STEPS} of {2 * STEPS}" in out
    assert (folder / "manifest.json").read_bytes() == before


def test_a_changed_record_is_exit_code_1_with_its_place(cut_off, tmp_path):
    folder, _, _ = cut_off
    path = folder / "start_1/steps.jsonl"
    data = path.read_bytes()
    try:
        path.write_bytes(data.replace(b'"step": 7,', b'"step": 8,'))
        code, out, _ = ended(program("verify", f"--run={folder}"))
    finally:
        path.write_bytes(data)
    assert code == 1 and "NOT VERIFIED" in out
    assert "start_1/steps.jsonl line 8: field step: expected 7, got 8" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "run: expected one run folder, got []"),
        (["weights"], "run: expected a folder with run.json, got none (weights)"),
        (["a", "b"], "arguments: expected flags and RUN_DIR, got ['a', 'b']"),
    ],
)
def test_what_is_no_run_is_exit_code_2(arguments, words):
    code, _, err = ended(program("verify", *arguments))
    assert code == 2 and words in err and len(err.splitlines()) == 1


def test_a_full_disk_ends_the_run_in_words_and_keeps_every_line(model, tmp_path):
    folder = cold_starts.create(tmp_path / "run", runs.job(model, ((3,),), 100))
    # A trace of a pass is a file of 550 kB; the lines are to be what does not fit.
    runner = program("cold_starts", "--resume", f"--workdir={folder}", limit=900_000)
    code, _, err = ended(runner)
    assert code == 2, err
    (line,) = [x for x in err.splitlines() if x.startswith("error: ")]
    assert "File too large" in line and "lines before are kept" in line and "--resume" in line
    kept = folder / "start_0_failed_0"
    first = files.sha256((folder / "run.json").read_bytes())
    lines, _, faults = runs.read_chain(kept / "steps.jsonl", first)
    assert faults == [] and len(lines) > 10
    failure = json.loads((kept / "failure.json").read_text())
    assert failure["steps_recorded"] == len(lines) and not failure["torn_line"]


def test_a_line_that_was_cut_off_is_kept_and_does_not_count(model, tmp_path):
    job = runs.job(model, ((3,),), 2)
    folder = cold_starts.create(tmp_path / "run", job)
    start = folder / "start_0"
    start.mkdir()
    chain = Chain(start / "steps.jsonl", files.sha256((folder / "run.json").read_bytes()))
    chain.append('{"step": 0}')
    chain.close()
    with open(start / "steps.jsonl", "ab") as f:
        f.write(b'{"previous": "12')
    (start / ".summary.json.tmp").write_text("half of a summ")
    assert cold_starts.tidy(folder, job) == ["start_0_failed_0"]
    failure = json.loads((folder / "start_0_failed_0/failure.json").read_text())
    assert (failure["steps_recorded"], failure["torn_line"]) == (1, True)
    assert (folder / "start_0_failed_0/steps.jsonl").read_bytes().endswith(b'{"previous": "12')
    assert not list(folder.rglob("*.tmp"))
    assert cold_starts.tidy(folder, job) == [] and reader.missing(folder, job.cold_starts) == [0]


def test_a_failure_that_was_noted_before_the_end_is_kept_as_it_is(model, tmp_path):
    job = runs.job(model, ((3,),), 2)
    folder = cold_starts.create(tmp_path / "run", job)
    (folder / "start_0").mkdir()
    noted = {"start": 0, "reason": "the disk was full"}
    files.write_json(folder / "start_0/failure.json", noted)
    assert cold_starts.tidy(folder, job) == ["start_0_failed_0"]
    assert files.read_json(folder / "start_0_failed_0/failure.json") == noted


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "run: expected a folder with run.json, got none"),
        (b"[]", "run.json: field format: expected 'fcjax run 1' or .* 'fcjax run 3', got \\[\\]"),
        (b'{"format": "fcjax run 1"}', "run.json: expected the fields of a job, got KeyError"),
        (b"{", "run.json: expected JSON, got"),
    ],
)
def test_a_folder_without_a_job_is_refused(tmp_path, content, words):
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        cold_starts.read(tmp_path)


def test_an_unfinished_run_is_not_verified(model, tmp_path):
    folder = cold_starts.create(tmp_path / "run", runs.job(model, ((3,),), 2))
    found = Verification(folder).check()
    assert "manifest.json: expected it, got nothing: the run is not finished" in found
    assert "start_0/steps.jsonl: expected it, got nothing" in found
