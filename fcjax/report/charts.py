"""Charts as inline SVG. Positions across are percentages, so text keeps its size on a phone."""

import math
from collections.abc import Sequence

from fcjax.report.folder import Run
from fcjax.report.markup import Markup, el, figure, join, many
from fcjax.report.start import RecordedStart, name_of

_SQUARES = 6000  # at most that many on a page; with more steps a square stands for several
_POINTS = 4000  # per strip; with more steps a point stands for the largest of several


def steps_grid(run: Run) -> Markup:
    """Steps by cold start: a square a pass, a cross where one failed."""
    job = run.job
    every = -(-run.asked // _SQUARES)
    rows = []
    for i in range(job["cold_starts"]):
        rows.append(_start_row(f"start {i}", run.starts.get(i), job["steps"], every))
    for start in run.failed:
        attempt = f"start {start.index}, failed attempt {start.name.rpartition('_')[2]}"
        rows.append(_start_row(attempt, start, job["steps"], every, failed=True))
    key = el(
        "p",
        el("i", class_="cell p"), " prefill pass ", el("i", class_="cell"), " step passed ",
        el("b", "\u2717", class_="cell"), " step failed ", el("i", class_="cell m"),
        " not recorded. ",
        f"A square stands for {every} steps. " if every > 1 else None,
        "Fifty to a line, twenty-five on a narrow screen; hold the pointer over a square for its"
        " number.",
        class_="legend",
    )
    return el("div", el("div", rows, class_="grid"), key)


def _start_row(
    name: str, start: RecordedStart | None, steps: int, every: int, failed=False
) -> Markup:
    passes = {p.step: p for p in start.passes} if start else {}
    early = [_cell([step], passes, "p") for step in sorted(s for s in passes if s < 0)]
    cells = []
    # An end of sequence leaves fewer steps than asked for, and they are not missing.
    ended = start is not None and start.summary is not None and start.summary["ended"] == "eos"
    last = max(passes, default=-1) + 1 if ended else steps
    for first in range(0, last, every):
        cells.append(_cell(range(first, min(first + every, last)), passes))
    done = [p for s, p in passes.items() if s >= 0]
    good = sum(p.passed for p in done)
    words = f"{good} of {len(done)} recorded steps passed" if done else "no step recorded"
    bad = sum(not p.passed for s, p in passes.items() if s < 0)
    if bad:
        words += f"; {bad} of {len(early)} prefill passes failed"
    if failed:
        words += "; the attempt failed"
    wrong = failed or bad > 0 or good < len(done)
    return el(
        "div",
        el(
            "h4",
            "\u2717 " if wrong else None,
            name,
            el("span", early, class_="early") if early else None,
            el("small", words),
            class_="bad" if wrong else None,
        ),
        el("div", cells, class_="cells", role="img", aria_label=f"{name}: {words}"),
        class_="start",
    )


def _cell(steps: Sequence[int], passes: dict, kind: str | None = None) -> Markup:
    there = [passes[s] for s in steps if s in passes]
    name = name_of(steps[0]) if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    if any(not p.passed for p in there):
        fault = next((f for p in there for f in p.faults), "it says so")
        return el("b", "\u2717", title=f"{name}: failed: {fault}")
    if len(there) < len(steps):
        return el("i", title=f"{name}: not recorded", class_="m")
    return el("i", title=f"{name}: passed", class_=kind)


def parity(run: Run) -> Markup:
    """Parity over the passes: a strip for each name, on a log axis with the bound."""
    bound = run.job["bound"]
    points: dict[str, list[tuple[int, float, str]]] = {}
    for i, start in sorted(run.starts.items()):
        for p in start.passes:
            for name, error in (p.parity or {}).items():
                points.setdefault(name, []).append((p.step, error, f"start {i}"))
    finite = [e for of in points.values() for _, e, _ in of if math.isfinite(e) and e > 0]
    if not finite:
        finite = [bound]
    low = math.floor(math.log10(min(*finite, bound / 10)))
    high = math.ceil(math.log10(max(*finite, bound)) + 0.3)
    span = _span(run)
    strips = [
        _parity_strip(name, of, bound, low, high, span, run.worst[name])
        for name, of in points.items()
    ]
    return el("div", strips, _across(span), class_="strips")


def _parity_strip(name, points, bound, low, high, span, worst) -> Markup:
    height = 92

    def y(error):
        if not math.isfinite(error):
            return 0.0
        at = math.log10(error) if error > 0 else low
        return height * (1 - (min(max(at, low), high) - low) / (high - low))

    decades = [10.0**n for n in range(low, high + 1)]
    labels = [d for d in decades if round(math.log10(d / bound)) % 2 == 0]
    axis = _axis([(y(d), f"{d:.0e}") for d in labels], height)
    lines = [_rule(y(d)) for d in decades]
    limit = y(bound)
    # One path for all dots: a line of no length has round ends.
    inside = [(s, e) for s, e, _ in points if e <= bound]
    over = [(s, e, who) for s, e, who in points if not e <= bound]
    dots = _dots(_thin(inside, span), y, span, height)
    crosses = [
        el("svg", el("title", f"{who}, {name_of(s)}: {figure(e)}"),
           el("path", d="M-4-4 4 4M-4 4 4-4"),
           x=_at(s, span), y=f"{y(e):.1f}", overflow="visible", class_="cross")
        for s, e, who in over[:500]
    ]
    words = f"{name}: worst {figure(worst)}, bound {figure(bound)}, {many(len(points), 'figure')}"
    plot = el(
        "svg", el("title", words), lines,
        el("line", x1=0, x2="100%", y1=f"{limit:.1f}", y2=f"{limit:.1f}", class_="limit"), dots,
        crosses, width="100%", height=height, role="img", aria_label=words,
    )
    head = el(
        "figcaption", el("b", name), " worst ", el("span", figure(worst), class_="figure"),
        f", {len(over)} above the bound" if over else None,
    )
    return el("figure", head, el("div", axis, plot, class_="plot"), class_="bad" if over else None)


def seconds(run: Run) -> Markup:
    """Time of the programs a step, as dots, with the median."""
    counted, apart = [], []
    for start in run.starts.values():
        for p in start.steps:
            warm = p is start.steps[0]
            (apart if warm or p.traced else counted).append((p.step, p.seconds))
    if not counted and not apart:
        return el("p", "No decode step was recorded.")
    height, span = 190, _span(run, prefill=False)
    values = [s for _, s in counted + apart if s > 0] or [1.0]
    low, high = math.log10(min(values)) - 0.08, math.log10(max(values)) + 0.08

    def y(value):
        return height * (1 - (math.log10(max(value, 1e-9)) - low) / (high - low))

    ticks = [
        m * 10.0**n
        for n in range(math.floor(low), math.ceil(high) + 1)
        for m in (1, 2, 5)
        if low <= math.log10(m * 10.0**n) <= high
    ]
    axis = _axis([(y(t), f"{t * 1e3:g} ms") for t in ticks], height)
    median = run.median_seconds
    line = None
    if median is not None:
        line = el("line", x1=0, x2="100%", y1=f"{y(median):.1f}", y2=f"{y(median):.1f}",
                  class_="median")
    words = (
        f"Seconds a step, {many(len(counted), 'step')} counted, median {_ms(median)}, from"
        f" {_ms(min(values))} to {_ms(max(values))}"
    )
    plot = el(
        "svg", el("title", words), [_rule(y(t)) for t in ticks],
        _dots(_thin(counted, span), y, span, height), _rings(apart, y, span, height),
        line, width="100%", height=height, role="img", aria_label=words,
    )
    return el("figure", el("div", axis, plot, class_="plot"), _across(span), class_="strips")


def bar(value: float, largest: float, kind: str = "bar") -> Markup:
    """A bar beside a figure."""
    width = f"{100 * value / largest:.4g}%" if largest else "0%"
    return el(
        "svg", el("rect", width=width, height=6), width="100%", height=6, aria_hidden="true",
        class_=kind,
    )


def _span(run: Run, prefill: bool = True) -> tuple[int, int]:
    """First and last pass that an axis has room for."""
    steps = [p.step for s in run.starts.values() for p in s.passes]
    first = min(steps, default=0) if prefill else 0
    return min(first, 0), max(run.job["steps"] - 1, first + 1)


def _at(step: int, span: tuple[int, int]) -> str:
    return f"{100 * _place(step, span):.4g}%"


def _place(step: int, span: tuple[int, int]) -> float:
    first, last = span
    return (step - first + 0.5) / (last - first + 1)


def _thin(points, span):
    """The largest of several neighbours, where there are more points than anyone can see."""
    every = -(-len(points) // _POINTS)
    if every <= 1:
        return points
    ordered = sorted(points)
    return [max(ordered[i : i + every], key=lambda p: p[1]) for i in range(0, len(points), every)]


def _dots(points, y, span, height, kind="dots") -> Markup:
    path = "".join(f"M{1000 * _place(s, span):.0f} {y(e):.1f}h0" for s, e in points)
    return el(
        "svg", el("path", d=path, class_=kind), viewBox=f"0 0 1000 {height}",
        preserveAspectRatio="none", width="100%", height=height, overflow="visible",
    )


def _rings(points, y, span, height) -> Markup:
    """A dot with a smaller one upon it, of the paper's colour."""
    return join(*(_dots(_thin(points, span), y, span, height, k) for k in ("ring", "hole")))


def _rule(at: float) -> Markup:
    return el("line", x1=0, x2="100%", y1=f"{at:.1f}", y2=f"{at:.1f}", class_="rule")


def _axis(labels, height) -> Markup:
    """The scale at the left."""
    return el(
        "svg",
        [el("text", text, x=50, y=f"{min(max(at + 4, 10), height):.1f}", text_anchor="end")
         for at, text in labels],
        width=58, height=height, aria_hidden="true", class_="axis",
    )


def _across(span) -> Markup:
    """The scale below: steps."""
    first, last = span
    count = last - max(first, 0) + 1
    every = next(n for d in range(9) for n in (10**d, 2 * 10**d, 5 * 10**d) if count <= 6 * n)
    ticks = list(range(0, last + 1, every))
    marks = [el("text", str(t), x=_at(t, span), y=13, text_anchor="middle") for t in ticks]
    if first < 0 and 1 - first > (last - first + 1) / 6:
        marks.append(el("text", "prefill", x=_at(first, span), y=13, text_anchor="start"))
    return el(
        "div",
        el("svg", width=58, height=16, aria_hidden="true", class_="axis"),
        el("svg", marks, width="100%", height=16, aria_hidden="true", class_="axis"),
        el("small", "step"),
        class_="plot across",
    )


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value * 1e3:.2f} ms"
