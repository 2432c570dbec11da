"""What `pip install` gives: the command, from a folder that is no clone, with its data files."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

ROOT = pathlib.Path(__file__).parents[1]
TINY = ROOT / "weights" / "tiny"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The `fcjax` command of a fresh environment that has this package and not this folder.

    The dependencies are those of the running interpreter, through a .pth; its own `fcjax`, if it
    is an editable one, comes after the installed one.
    """
    at = tmp_path_factory.mktemp("installed")
    source = at / "source"  # a build leaves files beside what it builds
    ignore = shutil.ignore_patterns(".*", "models", "runs", "tests", "weights", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=ignore)
    subprocess.run([sys.executable, "-m", "venv", at / "venv"], check=True)
    python = at / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", source]
    subprocess.run(pip, check=True, capture_output=True)
    shutil.rmtree(source)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = at / "venv" / "lib" / version / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return at / "venv" / "bin" / "fcjax"


@pytest.fixture
def fcjax(installed, tmp_path):
    """Runs the command in an empty folder."""
    environment = {k: x for k, x in os.environ.items() if k != "PYTHONPATH"}

    def run(*arguments):
        return subprocess.run(
            [installed, *map(str, arguments)],
            cwd=tmp_path, env=environment, capture_output=True, text=True,
        )

    return run


def test_a_run_is_recorded_verified_and_audited(fcjax, tmp_path, installed):
    where = [installed.with_name("python"), "-c", "import fcjax; print(fcjax.__file__)"]
    file = subprocess.run(where, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert file.startswith(str(installed.parents[1]))  # not the clone's
    run = fcjax("decode", f"--model={TINY}", "--steps=2", "--prompt=A", "--workdir=run")
    assert run.returncode == 0, run.stderr
    assert "2 of 2 audited steps passed" in run.stdout
    assert "<style>" in (tmp_path / "run/report.html").read_text()
    verified = fcjax("verify", "run", "--recompute=1")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "verified, 2/2" in verified.stdout
    audited = fcjax("audit", f"--model={TINY}", "--hlo=run/start_0/audit_T1")
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert "clean: 8 collectives inside the interval, 1 after it" in audited.stdout


def test_cold_starts_are_processes_of_the_installed_package(fcjax, tmp_path):
    flags = ("--cold_starts=2", "--steps=2", "--prompt=A", "--workdir=run")
    run = fcjax("cold-starts", f"--model={TINY}", *flags)
    assert run.returncode == 0, run.stdout + run.stderr
    assert json.loads((tmp_path / "run/summary.json").read_text())["passed_steps"] == 4


def test_gpu_models_are_part_of_the_package(fcjax):
    refused = fcjax("audit", f"--model={TINY}", "--topology=l5x2")
    assert refused.returncode == 2
    assert "expected one of ['a100', 'h100', 'l4'] and xN, got 'l5x2'" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate", "--prompt=A"), "model: expected --model, as there is no weights/tiny here"),
        (("genrate",), "command: expected one of generate, decode, "),
        ((), "command: expected one of generate, decode, "),
        (("verify", "nothing"), "run: expected a folder with run.json, got none (nothing)"),
    ],
)
def test_bad_input_is_one_line(fcjax, arguments, words):
    refused = fcjax(*arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: " + words) and refused.stderr.count("\n") == 1


def test_help_lists_the_programs(fcjax):
    shown = fcjax("--help")
    assert shown.returncode == 0
    for line in ("  generate ", "  verify ", "  audit "):
        assert line in shown.stdout
    assert "--recompute" in fcjax("verify", "--help").stdout
