"""`experiments.generate` as a user starts it: text, streams, exit codes, refusals."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests import models, runs

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = "experiments.generate"


def start(*flags, stdin="", change="", cwd=ROOT):
    """The program in a process of its own, with a line of the library changed before it starts."""
    run = f'import runpy; runpy.run_module("{PROGRAM}", run_name="__main__", alter_sys=True)'
    command = [sys.executable, "-c", f"{change}\n{run}", *flags]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=environment, input=stdin
    )


def test_a_batch_of_prompts():
    flags = "--prompt=ROMEO:", "--prompt=KING RICHARD III:\nNow is", "--max_new_tokens=12"
    both = start(*flags, "--nodes=3")
    assert both.returncode == 0, both.stderr
    assert both.stderr.count(": clean: ") == 2 and "audit, 1 token(s)" in both.stderr
    assert "row 1:" in both.stderr and "12 new, finish: length" in both.stderr
    assert "first token after" in both.stderr and "tokens/s" in both.stderr
    heading, first, second = re.split(r"--- prompt \d ---\n", both.stdout)
    assert heading == ""
    alone = start(*flags[1:], "--depth=1", "--layer=2")
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout == second and first != second
    assert ": clean: " in alone.stderr


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    """The packaged model with a chat template."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    folder.mkdir()
    for file in (ROOT / "weights/tiny").iterdir():
        if file.name != "manifest.json":
            (folder / file.name).write_bytes(file.read_bytes())
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    models.edit_json(folder / "tokenizer_config.json", chat_template=template)
    return folder


def test_a_conversation_from_stdin_and_the_same_from_a_file(chat_model, tmp_path):
    flags = f"--model={chat_model}", "--max_new_tokens=2", "--system=Speak, lords."
    lines = "Who is there?\n\n/reset\nWhere is the king?\nAnd the queen?\n"
    result = start(*flags, "--interactive", "--context=200", stdin=lines)
    assert result.returncode == 0, result.stderr
    answers = result.stdout.splitlines()
    assert len(answers) == 3
    summaries = [x for x in result.stderr.splitlines() if x.startswith("row 0: ")]
    # The system message is still in the caches after the reset.
    assert ["in the caches" in x for x in summaries] == [False, True, True]
    first = [{"role": "user", "content": "Where is the king?"}]
    answer = {"role": "assistant", "content": answers[1]}
    second = [*first, answer, {"role": "user", "content": "And the queen?"}]
    (tmp_path / "messages.json").write_text(json.dumps([second, first]))
    result = start(*flags, f"--messages={tmp_path}/messages.json", "--nodes=3")
    assert result.returncode == 0, result.stderr
    assert result.stdout == (f"--- prompt 0 ---\n{answers[2]}\n--- prompt 1 ---\n{answers[1]}\n")


def test_a_conversation_that_is_too_long_goes_on_after_a_reset():
    long = "Speak, speak. " * 30
    lines = f"O\n{long}\n/reset\nO\n"
    result = start("--interactive", "--context=40", "--max_new_tokens=30", stdin=lines)
    assert result.returncode == 0, result.stderr
    (refused,) = [x for x in result.stderr.splitlines() if x.startswith("error: ")]
    assert "prompt 0: expected at most 39 tokens" in refused and "/reset" in refused
    first, *_ = result.stdout.splitlines()
    assert result.stdout.count(first) == 2


def test_every_pass_can_be_recorded(tmp_path):
    flags = "--prompt=ROMEO:", "--prompt=KING RICHARD III:\nNow is", "--max_new_tokens=5"
    result = start(*flags, f"--evidence={tmp_path}/run")
    assert result.returncode == 0, result.stderr
    assert "5 of 5 audited steps passed" in result.stderr
    found = json.loads((tmp_path / "run/start_0/summary.json").read_text())
    assert found["passed"] and found["steps"] == 5
    first, second = found["text"]
    assert result.stdout == f"--- prompt 0 ---\n{first}\n--- prompt 1 ---\n{second}\n"
    job = json.loads((tmp_path / "run/run.json").read_text())
    assert job["command"] == "generate" and job["flags"]["max_new_tokens"] == 5
    assert job["whole"] and job["batch"] == 2 and len(job["prompts"][0][1]["ids"]) > 5


def test_the_file_says_how_tokens_are_chosen(tmp_path):
    for name in (ROOT / "weights/tiny").iterdir():
        if name.name != "manifest.json":
            (tmp_path / name.name).symlink_to(name)
    path = tmp_path / "generation_config.json"
    path.unlink()
    content = {"do_sample": True, "temperature": 0.9, "top_k": 30, "num_beams": 4}
    path.write_text(json.dumps(content | {"eos_token_id": 2047, "max_new_tokens": 7}))
    result = start(f"--model={tmp_path}", "--prompt=O", "--seed=5", "--top_p=0.9")
    assert result.returncode == 0, result.stderr
    assert "draws: temperature 0.9, top_k 30, top_p 0.9" in result.stderr
    assert "note: num_beams: 4 is not applied" in result.stderr
    assert "7 new, finish: length" in result.stderr


def test_a_failed_audit_is_exit_code_1_and_no_text():
    result = start("--prompt=O", change=runs.LEAK)
    assert result.returncode == 1, result.stderr
    assert "all-reduce-of-state" in result.stderr and result.stdout == ""


# Runs the program once for each list of flags, each in a copy of a process that has imported it:
# (exit code, stdout, stderr) of each.
COPIES = """
import json, os, sys, tempfile
from fcjax import commands
from fcjax.commands import generate
import transformers
results = []
for arguments in json.load(sys.stdin):
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
            sys.argv[1:] = arguments
            code = 70
            try:
                commands.run("generate")
            except SystemExit as e:
                code = e.code or 0
            finally:
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0), err.seek(0)
        results.append((code, out.read(), err.read()))
json.dump(results, sys.stdout)
"""

REFUSED = [
    ([], "prompt: expected one of --prompt, --messages, --interactive, got none"),
    (["--prompt=O", "--interactive"], "got --prompt and --interactive"),
    (["--interactive", "--evidence=new"], "evidence: expected --prompt or --messages with it"),
    (["--prompt=O", "--evidence=weights"], "expected a new folder, got an existing one (weights)"),
    (["--prompt="], "prompt 0: expected at least one token, got '' (--prompt)"),
    (["--prompt=O", "--prompt="], "prompt 1: expected at least one token, got '' (--prompt)"),
    (["--prompt=O", "--model=no/such/folder"], "model: expected a folder or a hub id"),
    (["--prompt=O", "--nodes=1"], "nodes: expected at least 2, got 1"),
    (["--prompt=O", "--nodes=0"], "nodes: expected at least 2, got 0"),
    (["--prompt=O", "--nodes=193"], "nodes: hidden_size 192 over 193 nodes"),
    (["--prompt=O", "--platform=tpu"], "--platform=tpu"),
    (["--prompt=O", "--dtype=float16"], "--dtype=float16"),
    (["--prompt=O", "--depth=some"], "depth: expected a number of layers or all, got 'some'"),
    (["--prompt=O", "--depth=-1"], "depth: expected a number of layers or all, got '-1'"),
    (["--prompt=O", "--depth=7"], "depth: expected 1 to the model's 6 layers, got 7"),
    (["--prompt=O", "--depth=0"], "depth: expected 1 to the model's 6 layers, got 0"),
    (["--prompt=O", "--layer=1"], "layer: expected 0 where all 6 layers run on shards, got 1"),
    (["--prompt=O", "--depth=1", "--layer=5"], "layer: expected 0 to 4"),
    (["--prompt=O", "--max_new_tokens=512"], "max_new_tokens: expected at most 511 after the 1"),
    (["--prompt=O", "--max_new_tokens=0"], "--max_new_tokens=0"),
    (["--prompt=" + "O, speak! " * 200], "prompt 0: expected at most 511 tokens and one to be"),
    (["--prompt=O", "--temperature=-1"], "temperature: expected 0 to 1e+30, got -1.0"),
    (["--prompt=O", "--top_p=0"], "top_p: expected more than 0 and at most 1, got 0.0 (--top_p)"),
    (["--prompt=O", "--top_p=1.5"], "top_p: expected more than 0 and at most 1, got 1.5 (--top_p)"),
    (["--prompt=O", "--top_k=-1"], "top_k: expected 0 (all tokens) or more, got -1 (--top_k)"),
    (["--prompt=O", "--seed=-1"], "--seed=-1"),
    (["--prompt=O", "--seed=4294967296"], "--seed=4294967296"),
    (["--prompt=O", "--system=Hi"], "system: expected a model with a chat template"),
    (["--messages=MESSAGES"], "messages: expected a model with a chat template, got one without"),
    (["--messages=no.json"], "no.json: expected JSON, got"),
    (["--messages=README.md"], "README.md: expected JSON, got"),
    (["--messages=ROLE"], "role: expected one of system, user, assistant, got 'robot'"),
    (["--messages=ASSISTANT"], "messages: expected the last one to be the user's"),
    (["--messages=MESSAGES", "--model=CHAT", "--system=Hi"], "system: expected one system message"),
]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory, chat_model):
    """(exit code, stdout, stderr) of each of `REFUSED`."""
    folder = tmp_path_factory.mktemp("refused")
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    for name, messages in {
        "MESSAGES": talk,
        "ROLE": [{"role": "robot", "content": "Hi"}],
        "ASSISTANT": [*talk, {"role": "assistant", "content": "Hi"}],
    }.items():
        (folder / name).write_text(json.dumps(messages))
    places = {name: folder / name for name in ("MESSAGES", "ROLE", "ASSISTANT")}
    places["CHAT"] = chat_model

    def fill(flag):
        name, _, value = flag.partition("=")
        return f"{name}={places[value]}" if value in places else flag

    asked = [[fill(flag) for flag in flags] for flags, _ in REFUSED]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COPIES], cwd=ROOT, input=json.dumps(asked),
        capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert len(results) == len(REFUSED)
    return results


@pytest.mark.parametrize("case", range(len(REFUSED)), ids=lambda i: " ".join(REFUSED[i][0])[:60])
def test_bad_input_is_one_line_and_exit_code_2(refusals, case):
    code, out, err = refusals[case]
    assert (code, out) == (2, ""), err
    (line,) = err.splitlines()
    assert line.startswith("error: ") and REFUSED[case][1] in line
