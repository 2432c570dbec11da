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

from fcjax import audit, files, manifest, report
from fcjax.files import plain
from fcjax.record import baseline, reader, run_folder
from fcjax.record.environment import code_sha256
from fcjax.record.job import PROSE, Job
from fcjax.record.reader import MALFORMED
from fcjax.record.summary import of_run
from fcjax.verify.faults import Faults, words
from fcjax.verify.start import StartCheck


class Verification:
    """The check of one run folder.

    Attributes:
      folder: the run.
      job: content of its run.json, after `check`; None if that cannot be read.
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
        self.folder = reader.run_folder_of(folder)
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
        except MALFORMED as e:
            self.faults.add(run_folder.RUN, words(e))
            return self.faults.found
        attempts = self._failed_starts()
        for i in range(self.job.cold_starts):
            self.faults.guarded(f"start_{i}", self._start, i, attempts.get(i, 0))
        self.faults.guarded(run_folder.SUMMARY, self._processes)
        self.faults.guarded(run_folder.SUMMARY, self._summary)
        self.faults.guarded(run_folder.REPORT, self._report)
        return self.faults.found

    def _facts(self, content: dict) -> None:
        """What follows from the job, but for the words in which another version said it."""
        expected = self.job.to_json()
        facts = [{k: x for k, x in of.items() if k not in PROSE} for of in (expected, content)]
        self.faults.expect(run_folder.RUN, *facts)
        for name in PROSE:
            prose = content.get(name)
            if not isinstance(prose, list) or not all(type(x) is str and x for x in prose):
                self.faults.add(run_folder.RUN, f"field {name}: expected sentences, got {prose}")
            elif self._same_code and prose != expected[name]:
                self.faults.add(run_folder.RUN, f"field {name}: expected {expected[name]}")

    @property
    def _same_code(self) -> bool:
        """Was the record written by this very code? Then its words and its page are known."""
        return self.job.code == code_sha256()

    def _files(self) -> None:
        """Every file against the manifest, and the manifest against its own form."""
        path = self.folder / manifest.NAME
        if not path.exists():
            self.faults.add(manifest.NAME, "expected it, got nothing: the run is not finished")
            return
        present = manifest.describe(self.folder)
        data = path.read_bytes()
        try:
            listed = files.decode(data, path)
            rows = {name: (row["size"], row["sha256"]) for name, row in listed.items()}
        except MALFORMED as e:
            self.faults.add(manifest.NAME, f"expected files with size and sha256, got {words(e)}")
            return
        if data != run_folder.seal_bytes(listed):
            self.faults.add(manifest.NAME, "expected the form in which it is written, got another")
        for name in sorted(rows.keys() | present.keys()):
            if name not in present:
                self.faults.add(name, f"expected the file that {manifest.NAME} lists, got nothing")
            elif name not in rows:
                self.faults.add(name, f"expected no file that {manifest.NAME} does not list")
            elif rows[name] != (present[name]["size"], present[name]["sha256"]):
                size, sha = rows[name]
                self.faults.add(
                    name,
                    f"expected {size} bytes with sha256 {str(sha)[:12]}... as in {manifest.NAME},"
                    f" got {present[name]['size']} with {present[name]['sha256'][:12]}...",
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
        known |= {reader.start_folder(self.folder, i).name for i in range(self.job.cold_starts)}
        for index, attempt, path in reader.failed_folders(self.folder):
            known.add(path.name)
            numbers.setdefault(index, []).append(attempt)
            where = f"{path.name}/{run_folder.FAILURE}"
            try:
                failure = files.read_json(path / run_folder.FAILURE)
                recorded, _ = reader.decode_steps(path)
                expected = {"start": index, "attempt": attempt, "steps_recorded": recorded}
                self.faults.expect(where, expected, {n: failure[n] for n in expected})
            except MALFORMED as e:
                self.faults.add(where, words(e))
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
        check = StartCheck(self.folder, self.job, index, self.faults, self._known)
        try:
            check.check(attempt)
        finally:
            self.audited += check.audited
            self.lines[index] = check.lines

    def _processes(self) -> None:
        """No two cold starts are one process, and none began before the one before it."""
        seen = []
        for i in range(self.job.cold_starts):
            path = reader.start_folder(self.folder, i) / run_folder.ENVIRONMENT
            process = files.read_json(path)["process"]
            seen.append((process["started"], process["pid"]))
            self.writers.add(str(files.read_json(path)["versions"]["fcjax"]))
        if len(set(seen)) != len(seen) or len({started for started, _ in seen}) != len(seen):
            self.faults.add("start_*/environment.json", "field process: expected different ones")

    def _summary(self) -> None:
        got = reader.summary(self.folder)
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
