"""Small recorded runs for the tests of the evidence."""

import hashlib
import itertools
import json
import pathlib
import shutil
from unittest import mock

from fcjax import cold_starts, manifest, report
from fcjax.model import checkpoint
from fcjax.record import baseline, observed, reader
from fcjax.record.job import Job
from fcjax.record.start import Start
from fcjax.sharded.interval import Interval
from fcjax.sharded.sampling import Sampling
from tests import models

ROOT = pathlib.Path(__file__).parents[1]
# Python that runs before a program: every node receives the complete sum, and keeps its own shard.
LEAK = """
import jax
from fcjax.sharded import ops
def scatter(y_U, axis):
    y, block = jax.lax.psum(y_U, "node"), y_U.shape[axis] // jax.lax.axis_size("node")
    start = jax.lax.axis_index("node") * block
    return jax.lax.dynamic_slice_in_dim(y, start, block, axis)
ops.scatter = scatter
"""
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def write_model(folder, cfg=models.THREE) -> pathlib.Path:
    """A small random model with a tokenizer, which has more tokens than the model."""
    models.write_folder(folder, cfg)
    for name in _TOKENIZER:
        shutil.copy(ROOT / "weights/tiny" / name, folder)
    return pathlib.Path(folder)


def job(model, ids=((3, 4, 5), (7, 8)), steps=3, **changes) -> Job:
    """A run of one row a start, one for each prompt in `ids`; `changes` are other fields."""
    source = checkpoint.open_folder(model)
    fields = {
        "command": "a test",
        "flags": {},
        "model_path": str(model),
        "weights_sha256": source.digest,
        "cfg": source.cfg,
        "nodes": 2,
        "interval": Interval(0),
        "sampling": Sampling(),
        "platform": "cpu",
        "hardware": "emulated nodes on one CPU, sharing its memory",
        "dtype": "float32",
        "length": max(map(len, ids)) + steps,
        "cold_starts": len(ids),
        "steps": steps,
        "seed": 0,
        "prompts": tuple(((f"ids {prompt}", tuple(prompt)),) for prompt in ids),
        "baseline": baseline.none(),
        "chunk": 4,
    }
    return Job(**fields | changes)


def record(folder, run: Job, failed: int | None = None, draws=None) -> pathlib.Path:
    """Run it in this process.

    Args:
      folder: a new one.
      run: the job.
      failed: a start before which an attempt is cut off.
      draws: for each pass the byte by which it is traced or not; by default none is but the last.
    """
    draws = itertools.repeat(255) if draws is None else iter(draws)
    with mock.patch.object(observed, "draw", lambda: next(draws)):
        return _record(folder, run, failed)


def _record(folder, run: Job, failed: int | None) -> pathlib.Path:
    folder = cold_starts.create(folder, run)
    for index in range(run.cold_starts):
        if index == failed:
            Start(folder, run, index)
            cold_starts.keep_failure(folder, index, "cut off by a test")
        start = Start(folder, run, index)
        start.prepare()
        start.load()
        start.decode()
    cold_starts.finish(folder, run)
    return folder


def read_lines(path) -> list[dict]:
    """The records of a steps.jsonl."""
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def read_chain(path, first: str) -> tuple[list[dict], str, list[str]]:
    """The records of a steps.jsonl with their numbers, its last hash, and what is wrong with it."""
    lines = list(reader.read_lines(path, first))
    records = [x.record | {"line": x.number} for x in lines if x.record is not None]
    return records, lines[-1].sha256, [fault for x in lines for fault in x.faults]


def write_lines(path, lines: list[dict], run_json: bytes) -> str:
    """A steps.jsonl with a chain of hashes made anew; returns the last line's hash."""
    last, out = hashlib.sha256(run_json).hexdigest(), []
    for line in lines:
        text = json.dumps(line | {"previous": last})
        last = hashlib.sha256(text.encode()).hexdigest()
        out.append(text + "\n")
    pathlib.Path(path).write_text("".join(out))
    return last


def reseal(folder: pathlib.Path, page=False) -> None:
    """What one does who knows the hashes: chains, summaries, manifest, and if `page` the page."""
    run_json = (folder / "run.json").read_bytes()
    total = json.loads((folder / "summary.json").read_text())
    for start in sorted(folder.glob("start_?")):
        if not (start / "steps.jsonl").exists() or not (start / "summary.json").exists():
            continue
        last = write_lines(start / "steps.jsonl", read_lines(start / "steps.jsonl"), run_json)
        models.edit_json(start / "summary.json", last_line=last)
        for entry in total["starts"]:
            if entry["start"] == int(start.name.removeprefix("start_")):
                entry["last_line"] = last
    (folder / "summary.json").write_text(json.dumps(total, indent=1) + "\n")
    if page:
        report.write(folder)
    rows = manifest.describe(folder)
    (folder / "manifest.json").write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
