"""Files that are whole or not there, chains that break where they were touched, locks."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from fcjax import files
from fcjax.record import run_folder
from fcjax.record.chain import Chain
from tests import runs

ROOT = pathlib.Path(__file__).parents[2]


def chain(path, count=3):
    made = Chain(path, "first")
    for i in range(count):
        made.append(json.dumps({"step": i}))
    made.close()
    return made


def test_a_chain_carries_the_hash_of_the_line_before(tmp_path):
    made = chain(tmp_path / "steps.jsonl")
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    previous = [json.loads(x)["previous"] for x in lines]
    assert previous == ["first", *(files.sha256(x.encode()) for x in lines[:2])]
    assert made.last == files.sha256(lines[2].encode()) and made.count == 3
    found, last, faults = runs.read_chain(tmp_path / "steps.jsonl", "first")
    assert [(x["step"], x["line"]) for x in found] == [(0, 1), (1, 2), (2, 3)]
    assert (last, faults) == (made.last, [])


def test_a_line_is_in_the_file_when_append_returns(tmp_path):
    made = Chain(tmp_path / "steps.jsonl", "first")
    made.append('{"step": 0}')
    assert (tmp_path / "steps.jsonl").read_bytes().endswith(b'"step": 0}\n')
    made.close()


def test_an_existing_chain_is_never_written_over(tmp_path):
    chain(tmp_path / "steps.jsonl")
    with pytest.raises(FileExistsError):
        Chain(tmp_path / "steps.jsonl", "first")


def test_a_broken_chain_says_where(tmp_path):
    path = tmp_path / "steps.jsonl"
    chain(path)
    whole = path.read_bytes()
    first, second, third = whole.splitlines(keepends=True)

    def faults():
        return runs.read_chain(path, "first")[2]

    path.write_bytes(first + second.replace(b"1", b"9", 1) + third)
    assert any("line 2: field previous" in f for f in faults())
    path.write_bytes(first + third)
    assert any("line 2: field previous" in f and "the hash of line 1" in f for f in faults())
    path.write_bytes(second + third)
    assert any("line 1: field previous" in f and "the hash of run.json" in f for f in faults())
    path.write_bytes(first + b"{broken\n" + third)
    assert any("line 2: expected a record" in f for f in faults())
    assert [x["line"] for x in runs.read_chain(path, "first")[0]] == [1, 3]
    path.write_bytes(first + b"[1, 2]\n")
    assert any("line 2: expected a record" in f for f in faults())
    path.write_bytes(whole[:-9])  # cut off in the middle of the last line
    assert faults() == ["steps.jsonl: expected a line end at the end, got none (line 3)"]
    assert len(runs.read_chain(path, "first")[0]) == 2


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    files.write_json(path, {"old": 1})

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device; what was recorded before is kept"):
        files.write_json(path, {"new": 2})
    assert files.read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


FULL_DISK = """
import json, resource, sys
from fcjax.record.chain import Chain
from tests import runs
chain = Chain(sys.argv[1], "first")
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    for step in range(100):
        chain.append(json.dumps({"step": step, "text": "x" * 500}))
except OSError as e:
    print(e)
"""


def test_a_full_disk_costs_no_line_that_was_recorded(tmp_path):
    path = tmp_path / "steps.jsonl"
    command = [sys.executable, "-c", FULL_DISK, path]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert "the 3 lines before are kept" in result.stdout and str(path) in result.stdout
    found, _, faults = runs.read_chain(path, "first")
    assert [x["step"] for x in found] == [0, 1, 2] and faults == []


def test_a_sync_that_fails_is_said_before_the_next_line(tmp_path, monkeypatch):
    made = Chain(tmp_path / "steps.jsonl", "first")

    def broken(fd):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        made.append('{"step": 0}')
        with pytest.raises(OSError, match="Input/output error; the 1 lines before are kept"):
            made.append('{"step": 1}')
    made.close()
    assert len(runs.read_chain(tmp_path / "steps.jsonl", "first")[0]) == 1


def test_json_that_is_none_is_said_with_its_file(tmp_path):
    (tmp_path / "run.json").write_bytes(b'{"a": \xff}')
    with pytest.raises(ValueError, match="run.json: expected JSON, got"):
        files.read_json(tmp_path / "run.json")
    with pytest.raises(ValueError):
        files.encode({"not JSON": float("nan")})


def test_a_folder_is_held_by_one_run_and_by_its_children(tmp_path):
    with run_folder.lock(tmp_path) as fd:
        with pytest.raises(ValueError, match="workdir: expected a folder that no run is writing"):
            with run_folder.lock(tmp_path):
                pass
        child = subprocess.Popen(["sleep", "30"], pass_fds=(fd,))
    try:
        with pytest.raises(ValueError, match="got one in use"):
            with run_folder.lock(tmp_path):
                pass
    finally:
        child.kill()
        child.wait()
    with run_folder.lock(tmp_path) as fd:
        assert fd >= 0
