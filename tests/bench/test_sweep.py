"""The sweeps, as a user runs them, on two settings each."""

import dataclasses
import html.parser
import json
import subprocess
import sys

import pytest

from fcjax.bench import sweep

SETTINGS = {
    "nodes": ("--nodes=2,3", [(2, 6), (3, 6)]),
    "depth": ("--depths=2,all", [(2, 2), (2, 6)]),
}


def run(*flags):
    command = [sys.executable, "-m", "experiments.sweep", "--steps=4", *flags]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("axis", SETTINGS)
def test_a_sweep(axis, tmp_path):
    flag, expected = SETTINGS[axis]
    done = run(f"--axis={axis}", flag, f"--workdir={tmp_path / 'sweep'}")
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    points = [sweep.Point(**p) for p in content["points"]]
    assert [(p.nodes, p.depth) for p in points] == expected
    assert content["axis"] == axis
    assert sweep.table(points) in done.stdout
    first = points[0]
    assert first.clean and first.parity <= 1e-5 and len(first.milliseconds) == 3
    # 5 a layer and the next one's two; or the head's two and the choice's two.
    assert [p.collectives for p in points] == [6 * d + (4 if d == 6 else 2) for _, d in expected]
    assert (tmp_path / "sweep" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "sweep" / "sweep.html").read_text()
    assert "http" not in page.replace("http-equiv", "")
    html.parser.HTMLParser().feed(page)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--axis=depth", "--nodes=2,3"], "nodes: expected one, as the axis is depth"),
        (["--axis=nodes", "--depths=1,2"], "depths: expected one, as the axis is nodes"),
        (["--axis=nodes", "--nodes=many"], "nodes: expected numbers such as 2,3,4, got 'many'"),
        (["--axis=width"], "--axis=width"),
        ([], "--axis"),
    ],
)
def test_what_is_no_axis_is_refused(flags, words):
    done = run(*flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr and done.stderr.count("\n") == 1


POINT = sweep.Point(2, 1, "clean", True, 8, 100.0, 100.0, 1.2, 1e-7, [1.0, 2.0], [5, 6])


@pytest.mark.parametrize(
    "change",
    [{"clean": False}, {"parity": 2e-5}, {"sent": 104.0}, {"tokens": [5, 7]}],
    ids=lambda change: next(iter(change)),
)
def test_one_wrong_point_fails_the_sweep(change):
    assert sweep.passed([POINT, POINT])
    assert not sweep.passed([POINT, dataclasses.replace(POINT, **change)])


def test_an_existing_folder_is_refused(tmp_path):
    (tmp_path / "kept").write_text("as it was")
    with pytest.raises(ValueError, match="workdir: expected a new folder, got an existing one"):
        sweep.write(tmp_path, "nodes", "title", [POINT])
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
