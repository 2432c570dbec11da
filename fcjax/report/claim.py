"""The top of the page: the verdict, the claim with its limits, and the baseline."""

from fcjax.report.folder import FAILED, PASSED, UNFINISHED, Run
from fcjax.report.markup import (
    Markup,
    code,
    duration,
    el,
    figure,
    fold,
    join,
    many,
    size,
    table,
)
from fcjax.report.rows import rows_of


def header(run: Run) -> Markup:
    """The verdict, so that nobody can miss it."""
    state = run.state
    steps = f"{run.passed_steps:,} of {run.asked:,} audited decode steps passed"
    sign, title, below = {
        PASSED: ("\u2713", steps, None),
        FAILED: ("\u2717", "This run failed", f"{steps}."),
        UNFINISHED: ("\u2026", "This run is not finished", f"{steps}."),
    }[state]
    return el(
        "header",
        el("p", "fcjax run report", class_="kicker"),
        el("h1", el("span", sign, class_="sign", aria_hidden="true"), title),
        el("p", below, class_="count") if below else None,
        _why(run),
        el("p", what_ran(run), class_="lead"),
        el("div", [el("div", el("b", value), el("span", name)) for name, value in _figures(run)],
           class_="figures"),
        class_=state,
    )


def _why(run: Run) -> Markup | None:
    """What is wrong or missing, and which attempts failed before."""
    reasons, left = run.reasons, run.never_done
    if reasons:
        more = fold(f"{len(reasons) - 5} more", items(reasons[5:])) if len(reasons) > 5 else None
        return el("div", items(reasons[:5]), more, class_="why")
    if left:
        words = (
            f"{many(len(left), 'cold start')} of {run.job['cold_starts']} left no summary;"
            f" {many(run.recorded, 'decode step')} recorded."
        )
        return el("p", words, class_="why")
    if run.summary is None:
        return el("p", "Every cold start is complete, but there is no summary.json.", class_="why")
    if run.failed:
        return el(
            "p",
            f"{many(len(run.failed), 'attempt')} at a cold start failed, and the start was made"
            " anew: ",
            el("a", "see failed attempts", href="#steps"),
            ".",
            class_="why",
        )
    return None


def items(texts) -> Markup:
    """A plain list."""
    return el("ul", [el("li", x) for x in texts])


def model_name(run: Run) -> str:
    """The model without the folder that it lay in."""
    return run.job["model_path"].rstrip("/").rpartition("/")[2]


def layers(run: Run) -> str:
    """The interval in words."""
    first, depth = run.job["interval"]["first"], run.job["interval"]["depth"]
    if run.job["whole"]:
        return f"all {depth} layers, the vocabulary head and the choice of the token"
    inside = f"layer {first}" if depth == 1 else f"layers {first} to {first + depth - 1}"
    return f"{inside}, to the real Q/K/V of layer {first + depth}"


def what_ran(run: Run) -> str:
    """The run in one line."""
    job = run.job
    return (
        f"{model_name(run)} ({job['model']['L']} layers, D {job['model']['D']}), {layers(run)}."
        f" {job['hardware']}, {job['dtype']}, batch {job['batch']}, cache for {job['length']}"
        f" tokens, {many(job['cold_starts'], 'cold start')} of {many(job['steps'], 'step')}."
    )


def _figures(run: Run):
    """The figures that a reader looks for first."""
    worst = run.worst
    if worst:
        name = max(worst, key=lambda n: (worst[n] != worst[n], worst[n]))
        yield f"worst parity ({name}), bound {figure(run.job['bound'])}", figure(worst[name])
    else:
        yield "parity", "not compared"
    yield "median time of a step", duration(run.median_seconds)
    rows, recorded = rows_of(run)
    if recorded:
        got = sum(r["result"]["bytes"] for row in rows for r in row["reductions"])
        yield "received by each node in a step, inside the interval", size(got)
    yield "collectives inside the interval", str(sum(len(row["reductions"]) for row in rows))


def claim(run: Run) -> Markup:
    """What is claimed, the conditions, and what is not."""
    first, depth = run.job["interval"]["first"], run.job["interval"]["depth"]
    whole = run.job["whole"]
    begins = (
        "the embedding"
        if whole
        else f"a residual that is already cut by coordinate (layer {first})"
    )
    ends = (
        "the final norm and the vocabulary head; there each node looks at its own logits, and the"
        " chosen token becomes public"
        if whole
        else f"the real Q/K/V of layer {first + depth}"
    )
    each = "" if depth == 1 else f" in each of {depth} layers in a row"
    path = (
        f"From {begins} the state goes through RMSNorm, Q/K/V, attention, the first residual add,"
        f" the SwiGLU MLP, the down projection and the second residual add{each}, and on to {ends}."
        " Every operator reads the shards that the one before it left."
    )
    conditions = (
        "The shards cover each state tensor exactly: no coordinate is missing, and none is held"
        " twice.",
        "Inside the interval no node is sent, holds or rebuilds a complete state tensor.",
        "The operator that comes next reads the shards as they are.",
    )
    verdict = {
        PASSED: f"This run supports the claim in {run.passed_steps:,} of {run.asked:,} decode"
        " steps.",
        FAILED: "This run does not support the claim: it failed, as said above.",
        UNFINISHED: f"This run is not finished. So far {run.passed_steps:,} of {run.recorded:,}"
        " recorded decode steps passed.",
    }[run.state]
    limits = [*run.job["limits"], *_own_limits(run)]
    return el(
        "section",
        el("h2", "The claim, and its limits"),
        el(
            "div",
            el("div", el("h3", "What was to be shown"), el("p", path)),
            el("div", el("h3", "The conditions"), el("ol", [el("li", x) for x in conditions])),
            class_="two",
        ),
        el("p", el("strong", verdict)),
        el("h3", "What it does not show"),
        el("div", items(limits), class_="limits"),
        id="claim",
    )


def _own_limits(run: Run):
    job = run.job
    if not job["whole"]:
        depth = job["interval"]["depth"]
        ran = "One layer ran" if depth == 1 else f"{depth} layers in a row ran"
        yield (
            f"{ran} on shards. Nothing is said about more, or about the KV cache's life in a model"
            " whose layers all do."
        )
    yield (
        f"There were {job['nodes']} nodes. Nothing is said about another number of them, or about a"
        " user's choice of nodes."
    )


def baseline(run: Run) -> Markup:
    """What the run is compared with, and the one axis in which it goes further."""
    record = run.job["baseline"]
    if record.get("name") is None:
        body = el("p", "None: this run is its own baseline.")
    else:
        name = "the published experiment" if record["name"] == "seed" else (
            record["name"].rstrip("/").rpartition("/")[2]
        )
        axis, differences = record["axis"], record["differences"]
        further = "differs from it" if axis == "parameters" else "goes further than it"
        words = f"This run {further} in one respect: {axis}." if axis else "This run repeats it."
        if axis == "parameters":
            words += (
                " Model, context, batch, precision and hardware change what a step costs, not how"
                " many operators, nodes or boundaries the state went through."
            )
        if any(d["what"] == "hardware" and "emulated" in str(d["here"]) for d in differences):
            words += (
                " Emulated nodes share one process and its memory: beside devices of their own they"
                " are a step back, and no boundary that was advanced."
            )
        rows = [
            [d["class"], d["what"], _value(d["baseline"]), _value(d["here"])] for d in differences
        ]
        body = join(
            el("p", "Held against ", el("strong", name), ". ", words),
            table(("axis", "what", "baseline", "here"), rows) if rows else None,
        )
    return el("section", el("h2", "Baseline, and the axis that was advanced"), body, id="baseline")


def _value(value) -> Markup | str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    text = str(value)
    return code(text) if len(text) == 64 else text
