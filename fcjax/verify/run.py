"""Checks a run folder again, from its files alone.

Three layers, so that what one of them misses another one finds:

1. Hashes: every file against the manifest, every line against the next.
2. Meaning: what a right record says follows from run.json and the audited program. The plan, the
   operator table and the ledger are made again, the stored programs are audited again, figures are
   counted again from the steps, and tokens have to go from step to step.
3. Numbers: `recompute` runs steps again from the recorded tokens.

Somebody who writes all hashes anew gets past the first layer only; somebody who makes up a whole
run with its numbers, past the first two.
"""

import json
import pathlib

from fcjax import audit, files, manifest, report
from fcjax.audit import trace
from fcjax.files import plain
from fcjax.record import baseline, certificate, chain, recorder, run_folder, summary
from fcjax.record.environment import code_sha256
from fcjax.record.job import PROSE, Job
from fcjax.record.summary import of_run, of_steps, start_faults
from fcjax.verify.faults import Faults
from fcjax.verify.steps import Lines

_START_FILES = (run_folder.ENVIRONMENT, run_folder.STEPS, run_folder.SUMMARY)
_MALFORMED = (TypeError, KeyError, AttributeError, IndexError, ValueError, OSError)


class Verification:
    """The check of one run folder.

    Attributes:
      folder: the run.
      job: content of its run.json, behind `check`; None if that cannot be read.
      faults: what is wrong, each with its file, line and field.
      notes: what was checked less strictly than it could be, in words.
      writers: versions of fcjax that the starts name.
      audited: programs that were audited again.
      lines: the checked lines, by start.
    """

    def __init__(self, folder, known: dict | None = None):
        """
        Args:
          folder: the run.
          known: verdicts of certificates that were verified before, by the bytes of their files;
            grows.

        Raises:
          ValueError: it is no run folder.
        """
        self.folder = pathlib.Path(folder)
        if not (self.folder / run_folder.RUN).is_file():
            raise ValueError(f"run: expected a folder with {run_folder.RUN}, got none ({folder})")
        self.job: Job | None = None
        self.faults, self.audited = Faults(), 0
        self.notes: list[str] = []
        self.writers: set[str] = set()
        self.lines: dict[int, list[dict]] = {}
        self._known: dict[tuple, audit.Verdict] = {} if known is None else known

    def check(self) -> list[str]:
        """Everything that needs no weights; returns the faults, none if there are none."""
        self._files()
        try:
            content = files.read_json(self.folder / run_folder.RUN)
            self.job = Job.from_json(content)
            self._facts(content)
            self._baseline()
        except _MALFORMED as e:
            self.faults.add(run_folder.RUN, _words(e))
            return self.faults.found
        attempts = self._failed_starts()
        for i in range(self.job.cold_starts):
            self._guarded(f"start_{i}", self._start, i, attempts.get(i, 0))
        self._guarded(run_folder.SUMMARY, self._processes)
        self._guarded(run_folder.SUMMARY, self._summary)
        self._guarded(run_folder.REPORT, self._report)
        return self.faults.found

    def _facts(self, content: dict) -> None:
        """What follows from the job, but for the words in which another version said it."""
        expected = self.job.to_json()
        facts = [{k: x for k, x in of.items() if k not in PROSE} for of in (expected, content)]
        self.faults.expect(run_folder.RUN, *facts)
        for name in PROSE:
            words = content.get(name)
            if not isinstance(words, list) or not all(type(x) is str and x for x in words):
                self.faults.add(run_folder.RUN, f"field {name}: expected sentences, got {words}")
            elif self._same_code and words != expected[name]:
                self.faults.add(run_folder.RUN, f"field {name}: expected {expected[name]}")

    @property
    def _same_code(self) -> bool:
        """Was the record written by this very code? Then its words and its page are known."""
        return self.job.code == code_sha256()

    def _guarded(self, where: str, check, *arguments) -> None:
        try:
            check(*arguments)
        except _MALFORMED as e:
            self.faults.add(where, f"expected a record that can be read, got {_words(e)}")

    def _files(self) -> None:
        """Every file against the manifest, and the manifest against its own form."""
        path = self.folder / manifest.NAME
        if not path.exists():
            self.faults.add(manifest.NAME, "expected it, got nothing: the run is not finished")
            return
        found = manifest.describe(self.folder)
        data = path.read_bytes()
        try:
            listed = json.loads(data)
            rows = {name: (row["size"], row["sha256"]) for name, row in listed.items()}
        except _MALFORMED as e:
            self.faults.add(manifest.NAME, f"expected files with size and sha256, got {_words(e)}")
            return
        if data != run_folder.seal_bytes(listed):
            self.faults.add(manifest.NAME, "expected the form in which it is written, got another")
        for name in sorted(rows.keys() | found.keys()):
            if name not in found:
                self.faults.add(name, f"expected the file that {manifest.NAME} lists, got nothing")
            elif name not in rows:
                self.faults.add(name, f"expected no file that {manifest.NAME} does not list")
            elif rows[name] != (found[name]["size"], found[name]["sha256"]):
                size, sha = rows[name]
                self.faults.add(
                    name,
                    f"expected {size} bytes with sha256 {str(sha)[:12]}... as in {manifest.NAME},"
                    f" got {found[name]['size']} with {found[name]['sha256'][:12]}...",
                )
        for entry in sorted(self.folder.rglob("*")):
            if entry.is_symlink():
                self.faults.add(str(entry.relative_to(self.folder)), "expected no link")

    def _baseline(self) -> None:
        recorded, job = self.job.baseline, self.job
        if recorded.get("name") is None:
            expected = baseline.none()
        else:
            described = recorded["described"]
            if recorded["name"] == baseline.SEED:
                described = baseline.seed()
            expected = baseline.against(job, recorded["name"], described)
        self.faults.expect(run_folder.RUN, {"baseline": plain(expected)}, {"baseline": recorded})

    def _failed_starts(self) -> dict[int, int]:
        """Checks the folders of failed starts; returns how many there are of each start."""
        numbers: dict[int, list[int]] = {}
        known = {run_folder.RUN, run_folder.SUMMARY, run_folder.REPORT, manifest.NAME}
        known |= {f"start_{i}" for i in range(self.job.cold_starts)}
        for path in summary.failed_folders(self.folder):
            known.add(path.name)
            _, index, _, attempt = path.name.split("_")
            numbers.setdefault(int(index), []).append(int(attempt))
            where = f"{path.name}/{run_folder.FAILURE}"
            try:
                found = files.read_json(path / run_folder.FAILURE)
                recorded = 0
                if (path / run_folder.STEPS).exists():
                    lines, _, _ = chain.read_chain(path / run_folder.STEPS, "")
                    recorded = sum(x.get("step", -1) >= 0 for x in lines)
                expected = {
                    "start": int(index),
                    "attempt": int(attempt),
                    "steps_recorded": recorded,
                }
                self.faults.expect(where, expected, {n: found[n] for n in expected})
            except _MALFORMED as e:
                self.faults.add(where, _words(e))
        for path in sorted(self.folder.iterdir()):
            if path.name not in known:
                self.faults.add(path.name, "expected no such file or folder in a run")
        for index, attempts in numbers.items():
            if sorted(attempts) != list(range(len(attempts))):
                self.faults.add(
                    f"start_{index}_failed_*",
                    f"expected attempts 0 to {len(attempts) - 1}, got {sorted(attempts)}",
                )
        return {index: len(attempts) for index, attempts in numbers.items()}

    def _start(self, index: int, attempt: int) -> None:
        """One start: its environment, its audits, its lines, its summary."""
        job, folder = self.job, self.folder / f"start_{index}"
        audits = [f"audit_T{tokens}" for tokens in job.tokens]
        expected = {*_START_FILES, *audits}
        names = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
        for name in sorted(expected - names):
            self.faults.add(f"{folder.name}/{name}", "expected it, got nothing")
        for name in sorted(names - expected):
            self.faults.add(f"{folder.name}/{name}", "expected no such file in a start")
        if expected - names:
            return
        there = files.read_json(folder / run_folder.ENVIRONMENT)
        devices = self._environment(there, index, attempt)
        verdicts = {}
        for tokens in job.tokens:
            self._guarded(
                f"{folder.name}/audit_T{tokens}", self._audit, folder, tokens, there, verdicts
            )
        first = files.sha256((self.folder / run_folder.RUN).read_bytes())
        lines = Lines(folder, first, job, index, self.faults)
        if set(verdicts) == set(job.tokens):
            lines.check(attempt, there["executables"], verdicts, devices)
        self.lines[index] = lines.lines
        self._guarded(
            f"{folder.name}/{run_folder.SUMMARY}",
            self._start_summary,
            folder,
            lines,
            verdicts,
            attempt,
        )

    def _environment(self, there: dict, index: int, attempt: int) -> list[int]:
        job, where = self.job, f"start_{index}/{run_folder.ENVIRONMENT}"
        devices = there["hardware"]["devices"]
        expected = {
            "start": index,
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
        })  # fmt: skip
        if len({d["device"] for d in devices}) != job.nodes:
            self.faults.add(where, f"field hardware.devices: expected {job.nodes} different ones")
        return [d["device"] for d in devices]

    def _audit(self, folder, tokens: int, there: dict, verdicts: dict) -> None:
        """The stored program is audited again, and is the one of the environment and the job."""
        job, name = self.job, f"audit_T{tokens}"
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
        content = json.loads(data[0])
        record = job.to_json()
        expected = {n: record[n] for n in ("model", "nodes", "interval", "sampling", "plan")} | {
            "sizes": {"batch": job.batch, "tokens": tokens, "length": job.slots},
            "weights": job.weights_sha256,
            "kind": "the program that ran",
        }
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

    def _start_summary(self, folder, lines: Lines, verdicts: dict, attempt: int) -> None:
        """Figures of a start, counted again."""
        job, where = self.job, f"{folder.name}/{run_folder.SUMMARY}"
        found = files.read_json(folder / run_folder.SUMMARY)
        programs = sum(x["seconds"] for x in lines.lines)
        recording, caches = found["recording"], found["caches"]
        expected = of_steps(lines.lines, job) | {
            "start": lines.start,
            "attempt": attempt,
            "last_line": lines.last,
        }
        expected["faults"] = expected["faults"] + start_faults(found, job)
        expected["passed"] = not expected["faults"]
        expected |= {
            "recording.share": recording["seconds"] / programs,
            "seconds.programs": programs,
            "caches.rows": sum(p + 1 for p in lines.lines[-1]["position"]),
            "trace": None,
        }
        if lines.lines[-1]["traced"]:
            expected["trace"] = self._trace(verdicts[1]) if 1 in verdicts else found["trace"]
        figures = [float(x) for layer in caches["layers"] or () for x in layer.values()]
        if job.compared:
            expected["caches.layers"] = [["k", "v"]] * job.cfg.L
            expected["caches.worst"] = max(figures)
        got = {n: found.get(n) for n in expected if "." not in n} | {
            "recording.share": recording["share"],
            "seconds.programs": found["seconds"]["programs"],
            "caches.rows": caches["rows"],
            "caches.layers": [sorted(layer) for layer in caches["layers"] or ()],
            "caches.worst": float(caches["worst"]) if caches["worst"] is not None else None,
        }
        self.faults.expect(where, plain(expected), {n: got[n] for n in expected})
        least = sum(x["recording_seconds"] for x in lines.lines)
        if not recording["seconds"] >= least:
            self.faults.add(where, f"field recording.seconds: expected at least {least}")
        for name, x in found["seconds"].items():
            if not x > 0:
                self.faults.add(where, f"field seconds.{name}: expected a time, got {x}")
        if not found["peak_bytes"] > 0:
            self.faults.add(where, f"field peak_bytes: expected bytes, got {found['peak_bytes']}")

    def _trace(self, verdict: audit.Verdict) -> dict:
        """What the profiler has to have seen in the last step."""
        planned = trace.planned(audit.parse(verdict.hlo))
        ran = dict.fromkeys(planned, 1)
        return {
            "step": self.job.steps - 1,
            "executions": [{"device": q, "collectives": ran} for q in range(self.job.nodes)],
            "faults": [],
        }

    def _processes(self) -> None:
        """No two cold starts are one process, and none began before the one before it."""
        seen = []
        for i in range(self.job.cold_starts):
            path = self.folder / f"start_{i}" / run_folder.ENVIRONMENT
            process = files.read_json(path)["process"]
            seen.append((process["started"], process["pid"]))
            self.writers.add(str(files.read_json(path)["versions"]["fcjax"]))
        if len(set(seen)) != len(seen) or len({started for started, _ in seen}) != len(seen):
            self.faults.add("start_*/environment.json", "field process: expected different ones")

    def _summary(self) -> None:
        got = files.read_json(self.folder / run_folder.SUMMARY)
        self.faults.expect(run_folder.SUMMARY, plain(of_run(self.folder, self.job)), got)
        if got.get("passed") is not True:
            self.faults.add(run_folder.SUMMARY, f"field passed: expected True, got {got['passed']}")

    def _report(self) -> None:
        """The page is made from the other files alone."""
        if not self._same_code:
            self.notes.append(
                f"{run_folder.REPORT} was made by other code than this: only its hash in"
                f" {manifest.NAME} was checked"
            )
        elif (self.folder / run_folder.REPORT).read_bytes() != report.render(self.folder):
            self.faults.add(run_folder.REPORT, "expected the page that the files give, got another")


def _words(e: Exception) -> str:
    return str(e) if isinstance(e, ValueError | OSError) and str(e) else repr(e)
