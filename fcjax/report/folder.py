"""A run folder as the report reads it.

Nothing here needs the run to be complete, to have passed or to be whole. What is missing is missing
in the page, and what contradicts the summaries is a fault.
"""

import pathlib

from fcjax.record import reader, run_folder
from fcjax.record.job import FORMATS
from fcjax.report.start import Owners, RecordedStart, contradictions, read

_OF_RUN = ("asked", "recorded", "passed_steps", "failed_starts", "worst", "median_seconds",
           "passed")
PASSED, FAILED, UNFINISHED = "passed", "failed", "unfinished"


class Run:
    """A run folder.

    Attributes:
      job: content of run.json.
      run_sha256: of that file.
      summary: content of summary.json, or None.
      starts: by index, those that did not fail.
      failed: the attempts that failed, in order.
      faults: what is wrong with the run's own files, in words.
      failed_checks: of the page (`checks.failed`), for a run in which nothing else is wrong.
    """

    def __init__(self, folder):
        """
        Args:
          folder: of the run.

        Raises:
          ValueError: there is no run.json, or it is none.
        """
        folder = pathlib.Path(folder)
        self.job = reader.run_json(folder)
        if not isinstance(self.job, dict) or self.job.get("format") not in list(FORMATS):
            known = " or ".join(map(repr, FORMATS))
            raise ValueError(f"run.json: expected format {known}, got another ({folder})")
        self.run_sha256 = reader.run_sha256(folder)
        self.faults: list[str] = []
        self.failed_checks: list[str] = []
        self.summary, fault = read(folder / run_folder.SUMMARY, _OF_RUN)
        if fault:
            self.faults.append(f"{run_folder.SUMMARY}: {fault}")
        self.starts = {
            i: RecordedStart(path, self.run_sha256)
            for i in range(self.job["cold_starts"])
            for path in (reader.start_folder(folder, i),)
            if path.is_dir()
        }
        self.failed = [
            RecordedStart(path, self.run_sha256) for _, _, path in reader.failed_folders(folder)
        ]
        if self.summary is not None:
            self._compare()

    @property
    def asked(self) -> int:
        """Decode steps."""
        return self.job["cold_starts"] * self.job["steps"]

    @property
    def recorded(self) -> int:
        """Decode steps of the starts that did not fail."""
        return sum(len(s.steps) for s in self.starts.values())

    @property
    def passed_steps(self) -> int:
        """Of those."""
        return sum(s.passed_steps for s in self.starts.values())

    @property
    def worst(self) -> dict[str, float]:
        """The largest parity figure of each name over all starts."""
        return reader.worst(s.worst for s in self.starts.values())

    @property
    def median_seconds(self) -> float | None:
        """The median of the starts' medians."""
        return reader.median(s.median_seconds for s in self.starts.values())

    @property
    def shown(self) -> dict | None:
        """The line of the first decode step: its ledger stands for all."""
        return next((s.shown for s in self.starts.values() if s.shown), None)

    @property
    def owners(self) -> Owners:
        """Counts over every ledger entry of the run."""
        total = Owners()
        for start in self.starts.values():
            total.add(start.owners)
        return total

    @property
    def never_done(self) -> list[int]:
        """Starts of which no attempt is complete."""
        return [
            i
            for i in range(self.job["cold_starts"])
            if i not in self.starts or self.starts[i].summary is None
        ]

    @property
    def reasons(self) -> list[str]:
        """Why the run failed, in words; empty if it did not."""
        reasons = []
        for start in self.failed:
            if start.index in self.never_done:
                reason = (start.failure or {}).get("reason", "nothing is known of why")
                reasons.append(f"{start.name}, and no later attempt is complete: {reason}")
        for start in self.starts.values():
            reasons += start.reasons
        for start in self.starts.values():
            reasons += start.faults
        reasons += self.faults
        if not reasons:
            reasons += [f"failed: {check}" for check in self.failed_checks]
        if self.summary is not None and not self.summary["passed"] and not reasons:
            reasons.append("summary.json says that the run failed")
        return reasons

    @property
    def state(self) -> str:
        """PASSED, FAILED or UNFINISHED."""
        if self.reasons:
            return FAILED
        return UNFINISHED if self.never_done or self.summary is None else PASSED

    def _compare(self) -> None:
        """Where the summary says something else than the starts."""
        counted = {
            "asked": self.asked,
            "recorded": self.recorded,
            "passed_steps": self.passed_steps,
            "failed_starts": [start.name for start in self.failed],
            "worst": self.worst or None,
            "median_seconds": self.median_seconds,
        }
        stated = self.summary | {
            "failed_starts": [x.get("folder") for x in self.summary["failed_starts"]]
        }
        self.faults += contradictions(stated, counted, "the folder says")
