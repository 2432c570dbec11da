"""The sections below the drawing: caches, starts, versions, how to verify."""

import shlex

from fcjax.report.folder import Run
from fcjax.report.markup import (
    Markup,
    code,
    definitions,
    duration,
    el,
    figure,
    fold,
    many,
    mark,
    size,
    table,
)
from fcjax.report.rows import coordinates, layer_of


def caches(run: Run) -> Markup:
    """The KV cache's life: owner, size, place, and figures at the end, layer by layer."""
    job = run.job
    first = job["interval"]["first"]
    inside = range(first, first + job["interval"]["depth"])
    owners = {}
    for row in (run.shown or {"ledger": []})["ledger"]:
        if "cache_k" in row["owners"]:
            owners[layer_of(row["boundary"])] = row["owners"]["cache_k"]
    starts = list(run.starts.values())
    passes = [p for s in starts for p in s.passes]
    moved = sum(p.moved for p in passes)
    split = job["plan"]["splits"]["K"]
    worst = _cache_worst(starts)
    rows = []
    for i in range(job["model"]["L"]):
        entry = owners.get(i)
        runs = [s["coordinates"] for s in entry["shards"]] if entry else split["owned"]
        owned = "; ".join(f"node {q}: {coordinates('K', *x)}" for q, x in enumerate(runs))
        held = [s["bytes"] for s in entry["shards"]] if entry else []
        rows.append([
            f"layer {i}", "inside the interval" if i in inside else "unmodified",
            owned + ("" if entry else " (plan)"),
            " / ".join(size(b) for b in dict.fromkeys(held)) or "\u2013",
            figure(worst.get((i, "k"))), figure(worst.get((i, "v"))),
        ])
    columns = ("layer", "runs", "owners", "k on each node", "worst k", "worst v")
    what = table(columns, rows, numeric=(3, 4, 5))
    if len(rows) > 8:
        what = fold(f"All {len(rows)} layers", what)
    return el(
        "section",
        el("h2", "The KV caches' life"),
        el("p", f"{job['slots']} slots a row, cut by whole KV groups, from a start's first pass to"
           f" its last. In {many(moved, 'pass')} of {len(passes):,} a cache's buffer was at another"
           " address on its node than in the pass before; k and v of every layer were looked at."
           " The figures are the worst of all starts, taken at each start's end against the"
           " unsharded reference."),
        what,
        id="caches",
    )


def _cache_worst(starts) -> dict:
    worst = {}
    for start in starts:
        caches = (start.summary or {}).get("caches") or {}
        for i, figures in enumerate(caches.get("layers") or ()):
            for name, error in figures.items():
                worst[i, name] = max(worst.get((i, name), 0.0), float(error))
    return worst


def starts(run: Run) -> Markup:
    """Each cold start and each failed attempt: figures, prompts, what was generated."""
    rows, texts = [], []
    for i in range(run.job["cold_starts"]):
        s = run.starts.get(i)
        if s is None:
            rows.append([f"start {i}", "nothing recorded", "", "", "", "", "", mark(None)])
            continue
        summary = s.summary or {}
        spent = (s.environment or {}).get("seconds", {}) | summary.get("seconds", {})
        took = [
            el("span", f"{n.replace('_', ' ')} {duration(x)}", class_="took")
            for n, x in spent.items()
        ]
        share = summary.get("recording", {}).get("share")
        rows.append([
            f"start {i}", f"{sum(p.passed for p in s.steps)} of {len(s.steps)}",
            figure(max(s.worst.values(), key=lambda e: (e != e, e))) if s.worst else "not compared",
            duration(s.median_seconds), "\u2013" if share is None else f"{share:.1%}",
            size(summary["peak_bytes"]) if summary else "\u2013", el("span", took), mark(s.passed),
        ])
        texts.append(_texts(run, i, summary.get("text")))
    columns = ("cold start", "steps passed", "worst parity", "median step", "recording",
               "peak memory", "seconds", "verdict")
    share = (run.summary or {}).get("recording_share")
    recording = "" if share is None else (
        f" Recording took {share:.1%} of the programs' time over the whole run; the programs'"
        " seconds do not contain it."
    )
    return el(
        "section",
        el("h2", "Cold starts"),
        el("p", f"Each opens, compiles, audits, loads and decodes from nothing.{recording}"),
        table(columns, rows, numeric=(1, 2, 3, 4, 5), class_="starts"),
        fold("Prompts, and what was generated", texts) if texts else None,
        id="starts",
    )


def _texts(run: Run, index: int, text) -> Markup:
    rows = []
    for row, prompt in enumerate(run.job["prompts"][index]):
        rows.append(el("p", el("span", prompt["text"], class_="prompt"),
                       el("span", text[row] if text else "", class_="generated")))
    return el("div", el("h4", f"start {index}"), rows, class_="texts")


def failures(run: Run) -> Markup | None:
    """The attempts that failed, as they were left."""
    if not run.failed:
        return None
    attempts = []
    for start in run.failed:
        f = start.failure or {}
        facts = [
            ("reason", f.get("reason", "not recorded")),
            ("exit code", "not known" if f.get("exit_code") is None else f["exit_code"]),
            ("decode steps recorded", f.get("steps_recorded", len(start.steps))),
            ("last line", "cut off" if f.get("torn_line") else "whole"),
        ]
        later = start.index not in run.never_done
        attempts.append(el(
            "div", el("h4", f"\u2717 {start.name}"), definitions(facts),
            el("p", "A later attempt at this start is complete." if later
               else "No later attempt at this start is complete."),
            fold("The end of what it printed", el("pre", f["output"])) if f.get("output") else None,
        ))
    return el("div", el("h3", "Attempts that failed"), attempts, class_="failure")


def faults(run: Run) -> Markup | None:
    """Every pass with a fault, the first hundred in words."""
    failed = [
        (start.name, p) for start in [*run.starts.values(), *run.failed] for p in start.passes
        if not p.passed
    ]
    if not failed:
        return None
    rows = [
        [name, p.step, el("ul", [el("li", x) for x in p.faults] or el("li", "it says so"))]
        for name, p in failed[:100]
    ]
    more = el("p", f"And {len(failed) - 100:,} more.") if len(failed) > 100 else None
    return el(
        "div", el("h3", f"\u2717 {many(len(failed), 'pass')} with faults"),
        table(("start", "pass", "faults"), rows), more, class_="failure",
    )


def versions(run: Run) -> Markup:
    """Where it ran, with what, and the hashes that tie the files together."""
    environments = {s.name: s.environment for s in run.starts.values() if s.environment}
    first = next(iter(environments.values()), None)
    job = run.job
    parts = [el("h2", "Versions and hashes")]
    if first is None:
        parts.append(el("p", "No start left a description of its environment."))
    else:
        hardware = first["hardware"]
        where = [
            ("nodes", "; ".join(f"node {d['node']}: {d['kind']} device {d['device']}"
                                for d in hardware["devices"])),
            ("machine", f"{hardware['processor']} ({hardware['machine']}),"
             f" {many(hardware['cores'], 'core')}, {size(hardware['memory_bytes'])}"),
            ("compilation cache", "used" if first["compilation_cache"] else "not used"),
            *((name.replace("_", " "), value or "none") for name, value in first["settings"].items()
              if name not in first["versions"]),
        ]
        same = all(_kept(e) == _kept(first) for e in environments.values())
        pairs = [(name, version) for name, version in first["versions"].items()]
        parts += [
            definitions([*pairs, *where]),
            el("p", "All starts the same." if same
               else "\u2717 The starts differ; shown is the first.", class_="legend"),
        ]
    rows = [
        ["run.json", code(run.run_sha256)],
        ["weights (manifest of the folder)", code(job["weights_sha256"])],
    ]
    certificates = {}
    for s in run.starts.values():
        for tokens, c in s.certificates.items():
            ok = "clean" if c["verdict"]["ok"] else "\u2717 not clean"
            key = f"audited program, {tokens} token(s) ({ok})", c["program"]["sha256"]
            certificates.setdefault(key, []).append(str(s.index))
    rows += [
        [f"{name}, {'start' if len(of) == 1 else 'starts'} {', '.join(of)}", code(sha)]
        for (name, sha), of in certificates.items()
    ]
    rows += [[f"last line of {s.name}", code(s.last_line)] for s in run.starts.values()]
    parts.append(table(("sha256 of", "digest"), rows, class_="hashes"))
    return el("section", parts, id="versions")


def _kept(environment: dict):
    return environment["versions"], environment["hardware"], environment["settings"]


def verify(run: Run) -> Markup:
    """The command that checks the folder, and the one that makes another."""
    flags = [
        f"--{name}={shlex.quote(str(x))}" if not isinstance(x, bool)
        else f"--{'' if x else 'no'}{name}"
        for name, value in run.job["flags"].items()
        if name not in ("workdir", "resume", "model") and value is not None
        for x in (value if isinstance(value, list) else [value])
    ]
    name = run.job["model_path"].rstrip("/").rpartition("/")[2]
    again = " ".join([f"python -m experiments.{run.job['command']}", f"--model=.../{name}", *flags])
    return el(
        "section",
        el("h2", "How to verify"),
        el("p", "Every figure on this page was counted from the files beside it. RUN is their"
           " folder. The first command checks hashes, chains, certificates, ledgers and summaries"
           " again; the second also computes some of the steps again."),
        el("pre", "python -m experiments.verify RUN\n"
           "python -m experiments.verify RUN --recompute=5"),
        el("p", "The run itself, again:"),
        el("pre", again),
        id="verify",
    )
