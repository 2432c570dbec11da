"""The figures of a start and of a run, as they follow from its lines.

The recorder and `verify` count with this code, so a summary can be counted again from the steps.
"""

from fcjax import files
from fcjax.record import reader, run_folder
from fcjax.record.job import Job
from fcjax.record.line import Pass, finite


def of_steps(lines: list[dict], job: Job) -> dict:
    """The figures of a start that follow from its lines alone."""
    figures = reader.Figures(map(Pass.of, lines))
    steps = figures.steps
    return {
        "prefill_passes": len(figures.passes) - len(steps),
        "steps": len(steps),
        "passed_steps": figures.passed_steps,
        "ended": "steps" if len(steps) == job.steps else "eos",
        "tokens": _tokens([x for x in lines if x["step"] >= 0]),
        "worst": _finite(figures.worst),
        "bound": job.bound,
        "compared": job.compared,
        "caches_moved": any(p.moved for p in figures.passes),
        "median_seconds": figures.median_seconds,
        "faults": [f"step {p.step}: {fault}" for p in figures.passes for fault in p.faults],
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
    folders = [reader.start_folder(folder, i) for i in range(job.cold_starts)]
    starts = [reader.summary(path) for path in folders]
    failed = [
        {"folder": path.name} | {n: failure[n] for n in ("start", "reason", "steps_recorded")}
        for _, _, path in reader.failed_folders(folder)
        for failure in (files.read_json(path / run_folder.FAILURE),)
    ]
    executables = {}
    for path in folders:
        there = files.read_json(path / run_folder.ENVIRONMENT)["executables"]
        for tokens, executable in there.items():
            hashes = executables.setdefault(tokens, [])
            if executable["hlo_sha256"] not in hashes:
                hashes.append(executable["hlo_sha256"])
    recorded = sum(s["steps"] for s in starts)
    passed_steps = sum(s["passed_steps"] for s in starts)
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
        "worst": _finite(reader.worst(s["worst"] or {} for s in starts)),
        "bound": job.bound,
        "compared": job.compared,
        "median_seconds": reader.median(s["median_seconds"] for s in starts),
        "recording_share": sum(s["recording"]["seconds"] for s in starts) / programs,
        "executables": executables,
    }


_OF_START = "start attempt steps passed_steps passed worst median_seconds last_line".split()


def _finite(figures: dict[str, float]) -> dict | None:
    return {name: finite(x) for name, x in figures.items()} or None


def _tokens(steps: list[dict]) -> list[list[int]]:
    """Ids of each row, from the lines of the decode steps."""
    return [list(row) for row in zip(*(sum(x["tokens_out"], []) for x in steps), strict=True)]
