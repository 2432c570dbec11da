"""A run's folder as it is read: names, attempts, lines, and the rules that figures are counted by.

`verify`, the report, the summaries and the cold starts all read through here.
"""

import json
import pathlib
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from fcjax import files, manifest
from fcjax.record import run_folder
from fcjax.record.line import Pass

MALFORMED = (TypeError, KeyError, AttributeError, IndexError, ValueError, OSError)


def run_folder_of(folder) -> pathlib.Path:
    """The folder, if it is that of a run.

    Raises:
      ValueError: it has no run.json.
    """
    if not (pathlib.Path(folder) / run_folder.RUN).is_file():
        raise ValueError(f"run: expected a folder with {run_folder.RUN}, got none ({folder})")
    return pathlib.Path(folder)


def run_json(folder):
    """The content of a run folder's run.json.

    Raises:
      ValueError: it is no run folder, or that is not JSON.
    """
    return files.read_json(run_folder_of(folder) / run_folder.RUN)


def run_sha256(folder) -> str:
    """Hash of run.json, which the first line of every start carries."""
    return files.sha256((pathlib.Path(folder) / run_folder.RUN).read_bytes())


def summary(folder) -> dict:
    """The figures of a complete run or start (docs/EVIDENCE.md, summary.json)."""
    return files.read_json(pathlib.Path(folder) / run_folder.SUMMARY)


# Attempts


def start_folder(folder, index: int) -> pathlib.Path:
    """Where a start is recorded that has not failed."""
    return pathlib.Path(folder) / f"start_{index}"


def failed_folder(folder, index: int, attempt: int) -> pathlib.Path:
    """Where an attempt at a start is kept that failed."""
    return pathlib.Path(folder) / f"start_{index}_failed_{attempt}"


def failed_folders(folder) -> list[tuple[int, int, pathlib.Path]]:
    """The attempts that failed, in order: start, attempt and folder."""
    attempts = []
    for path in pathlib.Path(folder).glob("start_*_failed_*"):
        index, attempt = path.name.removeprefix("start_").split("_failed_")
        if path.is_dir() and index.isdecimal() and attempt.isdecimal():
            attempts.append((int(index), int(attempt), path))
    return sorted(attempts)


def next_attempt(folder, index: int) -> int:
    """Number of the next attempt at a start: one more than the last that failed."""
    return 1 + max((n for i, n, _ in failed_folders(folder) if i == index), default=-1)


def missing(folder, starts: int) -> list[int]:
    """Of so many starts those that are not complete."""
    paths = (start_folder(folder, i) / run_folder.SUMMARY for i in range(starts))
    return [i for i, path in enumerate(paths) if not path.exists()]


def is_finished(folder) -> bool:
    """Whether the run is complete and sealed."""
    return (pathlib.Path(folder) / manifest.NAME).exists()


# Lines


class Line(NamedTuple):
    """One line of a chain.

    Attributes:
      number: from 1.
      record: its content; None if it cannot be read, or was cut off.
      faults: what is wrong with it as a link of the chain, in words.
      sha256: hash that the next line has to carry; of one that was cut off, that of the one before.
    """

    number: int
    record: dict | None
    faults: tuple[str, ...]
    sha256: str


def read_lines(path, first: str) -> Iterator[Line]:
    """The lines of a steps.jsonl one after the other, each held against the one before.

    Args:
      path: the file.
      first: hash that the first line has to carry.
    """
    name, last = pathlib.Path(path).name, first
    with open(path, "rb") as f:
        for number, raw in enumerate(f, 1):
            if not raw.endswith(b"\n"):  # a line that was cut off does not count
                text = f"{name}: expected a line end at the end, got none (line {number})"
                yield Line(number, None, (text,), last)
                return
            record, faults = None, ()
            try:
                content = json.loads(raw)
                previous = content["previous"]
            except (ValueError, KeyError, TypeError, RecursionError) as e:
                faults = (f"{name} line {number}: expected a record, got {e!r}",)
            else:
                record = content
                if previous != last:
                    before = f"line {number - 1}" if number > 1 else run_folder.RUN
                    faults = (
                        f"{name} line {number}: field previous: expected {last[:12]}..., the hash"
                        f" of {before}, got {str(previous)[:12]}..., so one of the two was changed",
                    )
            last = files.sha256(raw.removesuffix(b"\n"))
            yield Line(number, record, faults, last)


def decode_steps(start: pathlib.Path, first: str = "") -> tuple[int, bool]:
    """Decode steps that a start has on disk, and whether its lines are at fault."""
    path = start / run_folder.STEPS
    if not path.exists():
        return 0, False
    lines = list(read_lines(path, first))
    steps = sum(x.record is not None and x.record.get("step", -1) >= 0 for x in lines)
    return steps, any(x.faults for x in lines)


# Figures


class Figures:
    """What is counted over the passes of one start.

    Attributes:
      passes: all of them, in order.
      steps: the decode steps.
    """

    def __init__(self, passes: Iterable[Pass]):
        self.passes: list[Pass] = []
        self.steps: list[Pass] = []
        for p in passes:
            self.add(p)

    def add(self, p: Pass) -> None:
        """One more pass."""
        self.passes.append(p)
        if p.step >= 0:
            self.steps.append(p)

    @property
    def passed_steps(self) -> int:
        """Decode steps that passed."""
        return sum(p.passed for p in self.steps)

    @property
    def worst(self) -> dict[str, float]:
        """The largest parity figure of each name, prefill passes included."""
        return worst(p.parity or {} for p in self.passes)

    @property
    def timed(self) -> list[float]:
        """Seconds of the steps that the median is over: not the first, which is a warm-up, and none
        under the profiler."""
        return [p.seconds for p in self.steps[1:] if not p.traced]

    @property
    def median_seconds(self) -> float | None:
        """Of those steps; None if there are none."""
        return median(self.timed)


def median(values: Iterable[float | None]) -> float | None:
    """The median of those that are there; None if none is."""
    there = [x for x in values if x is not None]
    return statistics.median(there) if there else None


def worst(figures: Iterable[Mapping[str, float | str]]) -> dict[str, float]:
    """The largest figure of each name; what is no number is larger than any."""
    found: dict[str, float] = {}
    for by_name in figures:
        for name, x in by_name.items():
            x = float(x)
            before = found.get(name, x)
            found[name] = x if x != x or x > before else before
    return found
