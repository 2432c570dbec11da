"""The programs as a user starts them: what they print, their exit codes, and what they leave."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from fcjax import manifest
from fcjax.verify.run import Verification
from tests import runs

ROOT = pathlib.Path(__file__).parents[2]


def start(program, *flags):
    command = [sys.executable, "-m", program, *flags]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


def refusal(result) -> str:
    assert result.returncode == 2, result.stderr
    (line,) = [x for x in result.stderr.splitlines() if x.startswith("error: ")]
    return line


def test_decode_layer_records_an_audited_run(tmp_path):
    result = start(
        "experiments.decode_layer",
        "--steps=4",
        "--nodes=3",
        "--layer=2",
        f"--workdir={tmp_path}/run",
    )
    assert result.returncode == 0, result.stderr
    for words in ("layer_3/qkv", "K none", "outside the claim", "parity: residual", "passed"):
        assert words in result.stdout
    run = tmp_path / "run"
    assert {p.name for p in run.iterdir()} == {
        "run.json", "start_0", "summary.json", "report.html", "manifest.json",
    }
    assert Verification(run).check() == []
    summary = json.loads((run / "summary.json").read_text())
    assert summary["passed"] and summary["recorded"] == summary["passed_steps"] == 4
    lines = runs.read_lines(run / "start_0/steps.jsonl")
    assert [x["step"] for x in lines] == [-1, 0, 1, 2, 3]
    job = json.loads((run / "run.json").read_text())
    assert job["flags"]["nodes"] == 3 and job["model"]["D"] == 192
    manifest_rows = json.loads((ROOT / "weights/tiny/manifest.json").read_text())
    assert job["weights_sha256"] == manifest.digest(manifest_rows)
    # Four nodes go further than this run in one respect; four nodes and two layers in two.
    flags = ("--layer=2", "--steps=4", f"--baseline={run}", f"--workdir={tmp_path}/next")
    refused = start("experiments.decode_layer", *flags, "--nodes=4", "--depth=2")
    line = refusal(refused)
    assert "depth (depth 1 -> 2); nodes (nodes 3 -> 4)" in line and not (tmp_path / "next").exists()


def test_the_whole_model_runs_on_shards(tmp_path):
    flags = ("--depth=all", "--steps=3", "--temperature=1", "--top_k=40", "--top_p=0.9")
    result = start("experiments.decode_layer", *flags, "--baseline=seed", "--axis=depth")
    assert "got 2: depth (depth 1 -> all); parameters (" in refusal(result)
    result = start("experiments.decode_layer", *flags, f"--workdir={tmp_path}/run")
    assert result.returncode == 0, result.stderr
    for words in ("embed", "choose", "top-p mass", "3 of 3 audited steps passed", "caches: "):
        assert words in result.stdout
    assert "outside the claim" not in result.stdout
    assert Verification(tmp_path / "run").check() == []


def test_a_converted_folder_decodes_to_the_same_tokens(tmp_path):
    converted = tmp_path / "orbax"
    result = start("weights.convert", "--model=weights/tiny", f"--out={converted}")
    assert result.returncode == 0, result.stderr
    tokens = []
    for model in "weights/tiny", converted:
        folder = tmp_path / f"run{len(tokens)}"
        flags = f"--model={model}", "--steps=5", "--temperature=1", f"--workdir={folder}"
        result = start("experiments.decode_layer", *flags)
        assert result.returncode == 0, result.stderr
        tokens.append(json.loads((folder / "start_0/summary.json").read_text())["tokens"])
    assert tokens[0] == tokens[1]
    again = start("weights.convert", "--model=weights/tiny", f"--out={converted}")
    assert "expected a new path, got an existing one" in refusal(again)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model=no/such/folder"], "model: expected a folder or a hub id owner/name"),
        (["--model=owner/name"], "model: expected a folder, or a hub id that can be downloaded"),
        (["--nodes=1"], "nodes: expected at least 2, got 1"),
        (["--nodes=0"], "nodes: expected at least 2, got 0"),
        (["--nodes=500"], "500"),
        (["--layer=5"], "layer: expected 0 to 4"),
        (["--layer=-1"], "layer: expected 0 to 4"),
        (["--steps=0"], "--steps=0"),
        (["--steps=600"], "cache: expected 1 to 512 tokens"),
        (["--depth=7"], "depth: expected 1 to the model's 6 layers, got 7"),
        (["--depth=some"], "depth: expected a number of layers or all, got 'some'"),
        (["--depth=all", "--layer=1"], "layer: expected 0 where all 6 layers run on shards, got 1"),
        (["--top_p=0"], "top_p: expected more than 0"),
        (["--axis=nodes"], "axis: expected a --baseline with it"),
        (["--baseline=weights"], "run: expected a folder with run.json, got none (weights)"),
        (["--prompt="], "prompt: expected at least one token"),
        (["--dtype=float16"], "--dtype=float16"),
        (["--platform=tpu"], "--platform=tpu"),
        (["--temperature=-1"], "--temperature=-1"),
        (["--workdir=weights"], "workdir: expected a new folder, got an existing one (weights)"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(flags, words, tmp_path):
    workdir = tmp_path / "run"
    result = start("experiments.decode_layer", f"--workdir={workdir}", *flags)
    assert words in refusal(result)
    assert not workdir.exists()


def start_changed(change, *flags):
    """decode_layer with one line of the library changed before it starts."""
    run = 'runpy.run_module("experiments.decode_layer", run_name="__main__", alter_sys=True)'
    command = [sys.executable, "-c", f"{change}\nimport runpy\n{run}", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_failed_parity_is_exit_code_1(tmp_path):
    change = 'from fcjax.decode import parity; parity.BOUND["float32"] = 1e-12'
    result = start_changed(change, "--steps=2", f"--workdir={tmp_path}/run")
    assert result.returncode == 1, result.stderr
    assert "bound 1e-12: FAILED" in result.stdout
    assert not json.loads((tmp_path / "run" / "summary.json").read_text())["passed"]
    assert (
        "summary.json: field passed: expected True, got False"
        in Verification(tmp_path / "run").check()
    )


def test_failed_audit_is_exit_code_1_before_any_step(tmp_path):
    result = start_changed(runs.LEAK, "--steps=2", f"--workdir={tmp_path}/run")
    assert result.returncode == 1, result.stderr
    assert "all-reduce-of-state" in result.stdout and "layer_0/qkv" in result.stdout
    assert "all-reduce(" in result.stdout  # the offending instruction
    kept = tmp_path / "run" / "start_0_failed_0"
    assert not (kept / "steps.jsonl").exists()
    assert json.loads((kept / "failure.json").read_text())["reason"] == "the audit failed"
    assert not json.loads((kept / "audit_T1/certificate.json").read_text())["verdict"]["ok"]


def test_a_corrupt_weight_file_is_refused(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(ROOT / "weights/tiny", model)
    with open(model / "model.safetensors", "r+b") as f:
        f.seek(-1, os.SEEK_END)
        (byte,) = f.read(1)
        f.seek(-1, os.SEEK_END)
        f.write(bytes([byte ^ 1]))
    result = start("experiments.decode_layer", f"--model={model}", f"--workdir={tmp_path}/run")
    line = refusal(result)
    assert "model.safetensors: expected sha256" in line and str(model) in line
    assert not (tmp_path / "run").exists()


def test_benchmark_prints_every_peer():
    result = start("experiments.benchmark", "--rounds=1", "--context=16")
    assert result.returncode == 0, result.stderr
    for words in (
        "unsharded Flax layer", "layer on shards", "tensor parallel layer", "unsharded Flax",
        "every layer on shards", "transformers on torch", "floor:",
    ):
        assert words in result.stdout
