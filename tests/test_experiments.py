"""The programs as a user starts them: what they print, their exit codes, and what they leave."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from fcjax import manifest
from fcjax.audit import certificate

ROOT = pathlib.Path(__file__).parents[1]


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
        "config.json", "environment.json", "plan.json", "audit_T1", "audit_T2", "steps.jsonl",
        "summary.json",
    }  # fmt: skip
    assert all(certificate.verify(run / f"audit_T{tokens}").ok for tokens in (1, 2))
    summary = json.loads((run / "summary.json").read_text())
    assert summary["passed"] and summary["steps"] == 4
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    assert [s["step"] for s in steps] == [-1, 0, 1, 2, 3]
    assert [s["tokens_in"] for s in steps[1:]] == [s["tokens_out"] for s in steps[:-1]]
    config = json.loads((run / "config.json").read_text())
    assert config["flags"]["nodes"] == 3 and config["model"]["D"] == 192
    manifest_rows = json.loads((ROOT / "weights/tiny/manifest.json").read_text())
    assert config["weights_sha256"] == manifest.digest(manifest_rows)


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
        tokens.append(json.loads((folder / "summary.json").read_text())["tokens"])
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
        (["--steps=600"], "cache: expected 1 to 512 slots"),
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
    change = 'from fcjax import parity; parity.BOUND["float32"] = 1e-12'
    result = start_changed(change, "--steps=2", f"--workdir={tmp_path}/run")
    assert result.returncode == 1, result.stderr
    assert "bound 1e-12: FAILED" in result.stdout
    assert not json.loads((tmp_path / "run" / "summary.json").read_text())["passed"]


def test_failed_audit_is_exit_code_1_before_any_step(tmp_path):
    # Every node receives the complete sum, and keeps its own shard of it.
    change = """
import jax
from fcjax import ops
def scatter(y_U, axis):
    y, block = jax.lax.psum(y_U, "node"), y_U.shape[axis] // jax.lax.axis_size("node")
    start = jax.lax.axis_index("node") * block
    return jax.lax.dynamic_slice_in_dim(y, start, block, axis)
ops.scatter = scatter
"""
    result = start_changed(change, "--steps=2", f"--workdir={tmp_path}/run")
    assert result.returncode == 1, result.stderr
    assert "all-reduce-of-state" in result.stdout and "layer_0/qkv" in result.stdout
    assert "all-reduce(" in result.stdout  # the offending instruction
    assert not (tmp_path / "run" / "steps.jsonl").exists()
    assert not json.loads((tmp_path / "run" / "summary.json").read_text())["passed"]


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
        "unsharded Flax layer", "sharded layer", "tensor parallel layer", "unsharded Flax",
        "one audited layer", "transformers on torch", "floor:",
    ):  # fmt: skip
        assert words in result.stdout
