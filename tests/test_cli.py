"""Exit codes and the one line that a user sees, of a program and of the real ones."""

import os
import pathlib
import subprocess
import sys

import pytest

# Ours, whether or not it is installed.
ENV = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[1])}
PROGRAM = '''
"""A program.

    python program.py --steps=3
"""
from absl import flags
from fcjax import cli

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 1, "How many steps.", lower_bound=1)
ENDS = ["well", "failed", "input", "file", "bug", "lines", "library"]
flags.DEFINE_enum("end", "well", ENDS, "How.")
flags.DEFINE_string("needed", None, "A flag without a default.", required=True)


def main(_):
    print("ran", FLAGS.steps)
    match FLAGS.end:
        case "failed":
            return 1
        case "input":
            raise ValueError("size: expected 3, got 4 (file.json)")
        case "file":
            open("/none/such")
        case "lines":
            raise ValueError("many\\n  lines")
        case "library":
            int("what a library raises")
        case "bug":
            raise TypeError("a fault of ours")


if __name__ == "__main__":
    cli.run(main)
'''


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "program.py"
    path.write_text(PROGRAM)

    def run(*arguments):
        command = [sys.executable, path, "--needed=x", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=ENV)

    return run


def refused(result) -> str:
    """The one line of a refusal."""
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_done(run):
    result = run("--steps=3")
    assert (result.returncode, result.stdout, result.stderr) == (0, "ran 3\n", "")


def test_failed(run):
    result = run("--end=failed")
    assert (result.returncode, result.stdout, result.stderr) == (1, "ran 1\n", "")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(run, flag):
    result = run(flag)
    assert result.returncode == 0 and result.stderr == ""
    for words in "A program.", "--steps", "How many steps.", "default: '1'", "--needed":
        assert words in result.stdout
    assert "ran" not in result.stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--none"], "none"),
        (["--steps=many"], "--steps=many"),
        (["--steps=0"], "--steps=0"),
        (["--end=so"], "--end=so"),
        (["--needed="], None),
        (["more"], "arguments: expected flags only, got ['more']"),
        (["--flagfile=/none/such"], "/none/such"),
    ],
)
def test_bad_flags(run, arguments, words):
    result = run(*arguments)
    if words is None:  # an empty string is a value
        assert result.returncode == 0
    else:
        assert words in refused(result)
        assert result.stdout == ""


def test_named_arguments_are_taken_and_no_more(tmp_path):
    path = tmp_path / "program.py"
    last = 'cli.run(main, ("RUN_DIR",))'
    path.write_text(
        PROGRAM.replace('print("ran", FLAGS.steps)', "print(_[1:])").replace("cli.run(main)", last)
    )
    command = [sys.executable, path, "--needed=x"]
    for given in ["runs/a"], []:
        result = subprocess.run([*command, *given], capture_output=True, text=True, env=ENV)
        assert (result.returncode, result.stdout) == (0, f"{given}\n")
    result = subprocess.run([*command, "a", "b"], capture_output=True, text=True, env=ENV)
    assert "arguments: expected flags and RUN_DIR, got ['a', 'b']" in refused(result)


def test_missing_flag(run):
    program = run("--steps=1").args[1]
    result = subprocess.run([sys.executable, program], capture_output=True, text=True, env=ENV)
    assert "--needed" in refused(result)


def test_bad_input(run):
    assert refused(run("--end=input")) == "error: size: expected 3, got 4 (file.json)"
    assert "/none/such" in refused(run("--end=file"))
    assert refused(run("--end=lines")) == "error: many lines"


def test_traceback_on_request(run):
    result = run("--end=input", "--verbosity=1")
    assert result.returncode == 2
    assert "Traceback" in result.stderr and result.stderr.endswith("got 4 (file.json)\n")


def test_a_fault_of_ours_is_not_bad_input(run):
    for end, words in ("bug", "a fault of ours"), ("library", "what a library raises"):
        result = run(f"--end={end}")
        assert result.returncode == 1
        assert "Traceback" in result.stderr and words in result.stderr
