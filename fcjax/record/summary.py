"""The figures of a start and of a run, as they follow from its lines.

The recorder and `verify` count with this code, so a summary can be counted again from the steps.
"""

import statistics

from fcjax import files
from fcjax.record import run_folder
from fcjax.record.job import Job
from fcjax.record.recorder import finite


def of_steps(lines: list[dict], job: Job) -> dict:
    """The figures of a start that follow from its lines alone."""
    prefill, steps = ([x for x in lines if (x["step"] < 0) == early] for early in (True, False))
    names = list(steps[-1]["parity"]) if job.compared and steps else []
    worst = {
        n: finite(max(float(x["parity"][n]) for x in lines if n in x["parity"])) for n in names
    }
    timed = [x["seconds"] for x in steps[1:] if not x["traced"]]
    faults = [f"step {x['step']}: {fault}" for x in lines for fault in x["faults"]]
    return {
        "prefill_passes": len(prefill),
        "steps": len(steps),
        "passed_steps": sum(x["passed"] for x in steps),
        "ended": "steps" if len(steps) == job.steps else "eos",
        "tokens": _tokens(steps),
        "worst": worst or None,
        "bound": job.bound,
        "compared": job.compared,
        "caches_moved": any(x["caches"]["moved"] for x in lines),
        # The first step is a warm-up; a start of one step has nothing else.
        "median_seconds": statistics.median(timed) if timed else None,
        "faults": faults,
    }


def start_faults(summary: dict, job: Job) -> list[str]:
    """What is wrong in a start besides its passes, in words."""
    faults, caches = [], summary["caches"]
    if caches["worst"] is not None and not float(caches["worst"]) <= job.bound:
        faults.append(f"caches: expected at most {job.bound:.0e}, got {float(caches['worst']):.1e}")
    if not caches["padding_zero"]:
        faults.append("caches: expected zeros in the padding, got others")
    if summary["trace"]:
        faults += [f"trace: {fault}" for fault in summary["trace"]["faults"]]
    return faults


def of_run(folder, job: Job) -> dict:
    """The run's summary, from the starts and the failed starts in its folder."""
    starts = [
        files.read_json(folder / f"start_{i}" / run_folder.SUMMARY) for i in range(job.cold_starts)
    ]
    failed = [
        {"folder": f.name} | {n: found[n] for n in ("start", "reason", "steps_recorded")}
        for f in failed_folders(folder)
        for found in (files.read_json(f / run_folder.FAILURE),)
    ]
    executables = {}
    for i in range(job.cold_starts):
        there = files.read_json(folder / f"start_{i}" / run_folder.ENVIRONMENT)["executables"]
        for tokens, executable in there.items():
            found = executables.setdefault(tokens, [])
            if executable["hlo_sha256"] not in found:
                found.append(executable["hlo_sha256"])
    names = starts[0]["worst"] or {}
    recorded = sum(s["steps"] for s in starts)
    passed_steps = sum(s["passed_steps"] for s in starts)
    medians = [s["median_seconds"] for s in starts if s["median_seconds"] is not None]
    programs = sum(s["seconds"]["programs"] for s in starts)
    passed = all(s["passed"] for s in starts)
    compared = "compared with the unsharded reference" if job.compared else "not compared"
    return {
        "verdict": f"{passed_steps} of {recorded} audited steps passed over {job.cold_starts} cold"
        f" start{'s' if job.cold_starts > 1 else ''}, {compared}"
        + ("" if passed else "; the run FAILED"),
        "passed": passed,
        "asked": job.cold_starts * job.steps,
        "recorded": recorded,
        "passed_steps": passed_steps,
        "cold_starts": job.cold_starts,
        "starts": [
            {n: s[n] for n in _OF_START}
            | {"caches_worst": s["caches"]["worst"], "recording_share": s["recording"]["share"]}
            for s in starts
        ],
        "failed_starts": failed,
        "worst": {n: finite(max(float(s["worst"][n]) for s in starts)) for n in names} or None,
        "bound": job.bound,
        "compared": job.compared,
        "median_seconds": statistics.median(medians) if medians else None,
        "recording_share": sum(s["recording"]["seconds"] for s in starts) / programs,
        "executables": executables,
    }


def failed_folders(folder) -> list:
    """The folders of starts that failed, in order."""
    found = [f for f in folder.glob("start_*_failed_*") if f.is_dir()]
    return sorted(found, key=lambda f: [int(part) for part in f.name.split("_")[1::2]])


def next_attempt(folder, index: int) -> int:
    """Number of the next attempt at a start: one more than the last that failed."""
    failed = [f.name.split("_") for f in failed_folders(folder)]
    return 1 + max((int(attempt) for _, i, _, attempt in failed if int(i) == index), default=-1)


_OF_START = ("start", "attempt", "steps", "passed_steps", "passed", "worst", "median_seconds",
             "last_line")  # fmt: skip


def _tokens(steps: list[dict]) -> list[list[int]]:
    """Ids of each row, from the lines of the decode steps."""
    return [list(row) for row in zip(*(sum(x["tokens_out"], []) for x in steps), strict=True)]
