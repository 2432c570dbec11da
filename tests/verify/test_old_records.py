"""Records that earlier versions wrote still verify, and tampering with them is still found."""

import json
import pathlib
import subprocess
import sys
import tarfile

import pytest

from fcjax import manifest
from fcjax.verify.recompute import Recompute
from fcjax.verify.run import Verification

OLD = pathlib.Path(__file__).parent / "old"
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def version():
    """Of the format, where a test does not say otherwise."""
    return 1


@pytest.fixture
def old(tmp_path, version):
    """The runs of a format, in folders of their own."""
    with tarfile.open(OLD / f"format_{version}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("run", ["layer", "whole"])
def test_it_verifies_with_its_version_said(old, version, run):
    check = Verification(old / run)
    assert check.check() == []
    assert check.job.version == version and check.writers == {"0.1.0"}
    # Another version's words and page are not held against this one's.
    assert check.notes == [
        "report.html was made by other code than this: only its hash in manifest.json was checked"
    ]
    command = [sys.executable, "-m", "experiments.verify", str(old / run)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert f"record: format {version}, written by fcjax 0.1.0" in done.stdout


def test_its_steps_are_computed_again(old):
    check = Verification(old / "layer")
    assert check.check() == []
    again = Recompute(check.folder, check.job, str(ROOT / "weights/tiny"))
    again.check(check.lines, 2, check.faults, seed=0)
    assert check.faults.found == [] and len(again.chosen) == 2


def replace(name, old_text, new_text):
    """An edit of one file, by its bytes, so that all else is as it was written."""

    def edit(folder):
        path = folder / name
        data = path.read_bytes()
        assert old_text in data
        path.write_bytes(data.replace(old_text, new_text, 1))

    return edit


STEPS = "start_0/steps.jsonl"
TAMPERED = {
    "an owner": (replace(STEPS, b'"node": 1', b'"node": 2'), "ledger"),
    "a token": (replace(STEPS, b'"tokens_out": [[', b'"tokens_out": [[1'), "tokens_"),
    "a node less": (
        replace("run.json", b'"nodes": 3,\n "interval"', b'"nodes": 2,\n "interval"'),
        "run.json: field",
    ),
    "what ran": (replace(STEPS, b'"traced": false', b'"traced": false, "ran": {}'), "fields"),
    "no limits": (replace("run.json", b'"limits": [', b'"limits": ["", '), "field limits"),
    "a verdict": (
        replace("start_0/audit_T1/certificate.json", b'"sent": 1026', b'"sent": 1025'),
        "audit_T1",
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_found_though_every_hash_of_a_file_is_made_anew(old, name):
    edit, words = TAMPERED[name]
    edit(old / "layer")
    rows = manifest.describe(old / "layer")
    (old / "layer" / manifest.NAME).write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    assert any(words in fault for fault in Verification(old / "layer").check())


def test_another_page_is_found_by_its_hash(old):
    replace("report.html", b"<title>", b"<title>Better: ")(old / "layer")
    (fault,) = Verification(old / "layer").check()
    assert fault.startswith("report.html: expected") and "manifest.json" in fault
