"""A run folder as one page for a reader: report.html.

The page is made from the folder's other files alone, and the same files give the same bytes. It
needs no network and no script, and opens from the disk. A run that failed or is not finished is
shown as what it is.
"""

import importlib.resources
import pathlib

from fcjax import files
from fcjax.record import run_folder
from fcjax.report import charts, checks, claim, collectives, interval, tables
from fcjax.report.folder import Run
from fcjax.report.markup import Markup, el, join

# Nothing may be loaded, sent or run; the page's own style is all that there is.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_CONTENTS = (
    ("claim", "claim"), ("checks", "checks"), ("interval", "interval"), ("steps", "steps"),
    ("parity", "parity"), ("bytes", "bytes"), ("time", "time"), ("caches", "caches"),
    ("starts", "starts"), ("baseline", "baseline"), ("versions", "versions"), ("verify", "verify"),
)


def write(run_dir) -> pathlib.Path:
    """Write RUN/report.html from the other files of the folder; returns its path.

    Args:
      run_dir: of a run that passed, failed, or is not finished.

    Raises:
      ValueError: the folder has no run.json, or it is none.
    """
    path = pathlib.Path(run_dir) / run_folder.REPORT
    files.write(path, render(run_dir))
    return path


def render(run_dir) -> bytes:
    """The page's bytes; `run_dir` as in `write`."""
    run = Run(run_dir)
    run.failed_checks = checks.failed(run)
    style = importlib.resources.files("fcjax.report").joinpath("style.css").read_text()
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{run.state}: {run.passed_steps} of {run.asked} audited decode steps"),
        el("style", Markup(style)),
    )
    body = el("body", claim.header(run), _contents(), el("main", _sections(run)))
    return (
        Markup("<!doctype html>\n") + el("html", head, body, lang="en", class_=run.state) + "\n"
    ).encode()


def _contents() -> Markup:
    return el(
        "nav",
        [el("a", words, href=f"#{name}") for name, words in _CONTENTS],
        aria_label="Sections of this page",
    )


def _sections(run: Run) -> Markup:
    recorded = run.shown is not None
    compared = any(s.worst for s in run.starts.values())
    return join(
        claim.claim(run),
        checks.checks(run),
        _section("interval", "The interval, operator by operator",
                 interval.draw(run), interval.legend(recorded)),
        _section("steps", "Steps by cold start", charts.steps_grid(run), tables.faults(run),
                 tables.failures(run)),
        _section(
            "parity", "Parity over the steps",
            el("p", "Largest |out \u2212 ref| / |ref| of a row in each pass, against the unsharded"
               " reference on the same tokens; every start is drawn, prefill included, on a log"
               " axis. The dashed line is the bound."),
            charts.parity(run) if compared else el("p", "The numbers were not compared."),
        ),
        collectives.collectives(run),
        _section(
            "time", "Time per step",
            el("p", "Seconds of the programs in each decode step, all starts, on a log axis; the"
               " line is the median. Rings are not counted: the first step of a start, and one"
               " under the profiler.",
               " Emulated nodes share the cores of one machine, so this says nothing about a"
               " network." if run.job["platform"] == "cpu" else None),
            charts.seconds(run),
        ),
        tables.caches(run),
        tables.starts(run),
        claim.baseline(run),
        tables.versions(run),
        tables.verify(run),
    )


def _section(name: str, title: str, *content) -> Markup:
    return el("section", el("h2", title), content, id=name)
