"""Checks one cold start of a run: its environment, its audited programs, its lines, its figures."""

from fcjax import audit, files
from fcjax.audit import trace
from fcjax.files import plain
from fcjax.record import certificate, reader, recorder, run_folder
from fcjax.record.job import Job
from fcjax.record.summary import of_steps, start_faults
from fcjax.verify.faults import Faults
from fcjax.verify.steps import Lines

_FILES = (run_folder.ENVIRONMENT, run_folder.STEPS, run_folder.SUMMARY)


class StartCheck:
    """The check of one start.

    Attributes:
      lines: the checked lines.
      audited: programs that were audited again.
    """

    def __init__(self, folder, job: Job, index: int, faults: Faults, known: dict):
        """
        Args:
          folder: of the run.
          job: content of its run.json.
          index: of the start.
          faults: where to put what is wrong.
          known: verdicts of certificates that were verified before, by the bytes of their files;
            grows.
        """
        self.folder, self.job, self.index = reader.start_folder(folder, index), job, index
        self.faults, self._known = faults, known
        self.lines: list[dict] = []
        self.audited = 0

    def check(self, attempt: int) -> None:
        """Its environment, its audits, its lines, its summary.

        Args:
          attempt: how many attempts at it failed before.
        """
        job, folder = self.job, self.folder
        audits = [f"audit_T{tokens}" for tokens in job.tokens]
        expected = {*_FILES, *audits}
        names = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
        for name in sorted(expected - names):
            self.faults.add(f"{folder.name}/{name}", "expected it, got nothing")
        for name in sorted(names - expected):
            self.faults.add(f"{folder.name}/{name}", "expected no such file in a start")
        if expected - names:
            return
        there = files.read_json(folder / run_folder.ENVIRONMENT)
        devices = self._environment(there, attempt)
        verdicts = {}
        for tokens in job.tokens:
            self.faults.guarded(
                f"{folder.name}/audit_T{tokens}", self._audit, tokens, there, verdicts
            )
        first = reader.run_sha256(folder.parent)
        lines = Lines(folder, first, job, self.index, self.faults)
        if set(verdicts) == set(job.tokens):
            lines.check(attempt, there["executables"], verdicts, devices)
        self.lines = lines.lines
        self.faults.guarded(
            f"{folder.name}/{run_folder.SUMMARY}",
            self._summary,
            lines,
            verdicts,
            attempt,
        )

    def _environment(self, there: dict, attempt: int) -> list[int]:
        job, where = self.job, f"{self.folder.name}/{run_folder.ENVIRONMENT}"
        devices = there["hardware"]["devices"]
        expected = {
            "start": self.index,
            "attempt": attempt,
            "compilation_cache": False,
            "platform": job.platform,
            "nodes": list(range(job.nodes)),
            "recorded_apart": {
                "model": job.model_path,
                "context_length": job.length,
                "batch": job.batch,
                "dtype": job.dtype,
            },
            "tokens": sorted(map(str, job.tokens)),
        }
        platform = there["hardware"]["platform"]
        self.faults.expect(where, expected, {
            **{n: there[n] for n in ("start", "attempt", "compilation_cache", "recorded_apart")},
            "platform": {"gpu": "cuda"}.get(platform, platform),
            "nodes": [d["node"] for d in devices],
            "tokens": sorted(there["executables"]),
        })
        if len({d["device"] for d in devices}) != job.nodes:
            self.faults.add(where, f"field hardware.devices: expected {job.nodes} different ones")
        return [d["device"] for d in devices]

    def _audit(self, tokens: int, there: dict, verdicts: dict) -> None:
        """The stored program is audited again, and is the one of the environment and the job."""
        job, folder, name = self.job, self.folder, f"audit_T{tokens}"
        paths = [folder / name / n for n in (certificate.NAME, certificate.PROGRAM)]
        where = f"{folder.name}/{name}/{certificate.NAME}"
        data = tuple(path.read_bytes() for path in paths)
        if data not in self._known:  # the starts have the same program: audited once
            self._known[data] = certificate.verify(folder / name)
            self.audited += 1
        verdict = self._known[data]
        if not verdict.ok:
            self.faults.add(where, f"expected a clean program, got {verdict.violations[0].code}")
            return
        content = files.decode(data[0], where)
        record = job.to_json()
        expected = {n: record[n] for n in ("model", "nodes", "interval", "sampling", "plan")} | {
            "sizes": {"batch": job.batch, "tokens": tokens, "length": job.slots},
            "weights": job.weights_sha256,
            "kind": "the program that ran",
        }
        if job.version > 2 or "dtype" in content:  # earlier certificates did not say the type
            expected["dtype"] = job.dtype
        self.faults.expect(where, expected, {n: content.get(n) for n in expected})
        ran = there["executables"][str(tokens)]
        stored = {
            "tokens": tokens,
            "hlo_sha256": files.sha256(data[1]),
            "program_sha256": recorder.program_sha256(data[1].decode()),
        }
        if self.faults.expect(
            f"{folder.name}/{run_folder.ENVIRONMENT}",
            {f"executables.{tokens}": stored},
            {f"executables.{tokens}": {n: ran[n] for n in stored}},
        ):
            verdicts[tokens] = verdict

    def _summary(self, lines: Lines, verdicts: dict, attempt: int) -> None:
        """Figures of a start, counted again."""
        job, where = self.job, f"{self.folder.name}/{run_folder.SUMMARY}"
        stated = reader.summary(self.folder)
        programs = sum(x["seconds"] for x in lines.lines)
        recording, caches = stated["recording"], stated["caches"]
        expected = of_steps(lines.lines, job) | {
            "start": lines.start,
            "attempt": attempt,
            "last_line": lines.last,
        }
        expected["faults"] = expected["faults"] + start_faults(stated, job)
        expected["passed"] = not expected["faults"]
        expected |= {
            "recording.share": recording["seconds"] / programs,
            "seconds.programs": programs,
            "caches.rows": sum(p + 1 for p in lines.lines[-1]["position"]),
            "trace": None,
        }
        if lines.lines[-1]["traced"]:
            expected["trace"] = self._trace(verdicts[1]) if 1 in verdicts else stated["trace"]
        figures = [float(x) for layer in caches["layers"] or () for x in layer.values()]
        if job.compared:
            expected["caches.layers"] = [["k", "v"]] * job.cfg.L
            expected["caches.worst"] = max(figures)
        got = {n: stated.get(n) for n in expected if "." not in n} | {
            "recording.share": recording["share"],
            "seconds.programs": stated["seconds"]["programs"],
            "caches.rows": caches["rows"],
            "caches.layers": [sorted(layer) for layer in caches["layers"] or ()],
            "caches.worst": float(caches["worst"]) if caches["worst"] is not None else None,
        }
        self.faults.expect(where, plain(expected), {n: got[n] for n in expected})
        least = sum(x["recording_seconds"] for x in lines.lines)
        if not recording["seconds"] >= least:
            self.faults.add(where, f"field recording.seconds: expected at least {least}")
        for name, x in stated["seconds"].items():
            if not x > 0:
                self.faults.add(where, f"field seconds.{name}: expected a time, got {x}")
        if not stated["peak_bytes"] > 0:
            self.faults.add(where, f"field peak_bytes: expected bytes, got {stated['peak_bytes']}")

    def _trace(self, verdict: audit.Verdict) -> dict:
        """What the profiler has to have seen in the last step."""
        planned = trace.planned(audit.parse(verdict.hlo))
        ran = dict.fromkeys(planned, 1)
        return {
            "step": self.job.steps - 1,
            "executions": [{"device": q, "collectives": ran} for q in range(self.job.nodes)],
            "faults": [],
        }
