"""The folder of one cold start as the report reads it, complete or not.

Every figure is counted again from the lines of the steps; what the summary says otherwise is a
fault.
"""

import dataclasses
import pathlib

from fcjax import files
from fcjax.record import observed, run_folder
from fcjax.record.line import Pass
from fcjax.record.reader import MALFORMED, Figures, read_lines

_OF_SUMMARY = ("steps", "passed_steps", "median_seconds", "worst", "last_line", "passed")


@dataclasses.dataclass
class Owners:
    """Counts over ledger entries: one for each state tensor, boundary and pass."""

    entries: int = 0
    measured: int = 0
    disjoint: int = 0
    covering: int = 0
    as_planned: int = 0

    def count(self, ledger: list[dict]) -> None:
        """Add the entries of one pass."""
        for row in ledger:
            for owners in row["owners"].values():
                self.entries += 1
                for name in ("measured", "disjoint", "covering", "as_planned"):
                    setattr(self, name, getattr(self, name) + (owners[name] is True))

    def add(self, other: "Owners") -> None:
        """Add the counts of another start."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class RecordedStart(Figures):
    """The folder of one cold start, complete or not, and the figures of its lines.

    Attributes:
      name: of the folder.
      index: of the start.
      failure: content of failure.json, if this attempt failed.
      environment, summary: content of those files; None if they are not there.
      certificates: by number of tokens.
      owners: counts over their ledgers.
      shown: the whole line of the first decode step.
      other_ledgers: decode steps whose ledger is another than that one's.
      live: by moment, by class: the largest (arrays, bytes) of all passes; "unaccounted" as well.
      public: number of decode steps whose token became public.
      observed: passes of which the record says what ran; `strange`: those of them in which
        something ran or was read that should not have been.
      last_line: hash of the last line.
      faults: what is wrong with the files, in words.
    """

    def __init__(self, folder: pathlib.Path, first: str):
        super().__init__(())
        self.folder, self.name = folder, folder.name
        self.index = int(folder.name.split("_")[1])
        self.faults: list[str] = []
        self.failure = self._json(run_folder.FAILURE, "reason")
        self.environment = self._json(
            run_folder.ENVIRONMENT, "process", "versions", "hardware", "settings", "seconds"
        )
        self.summary = self._json(run_folder.SUMMARY, *_OF_SUMMARY, "caches", "trace", "faults")
        self.certificates = {}
        for audit in sorted(folder.glob("audit_T*"), key=lambda f: int(f.name[7:])):
            certificate = self._json(f"{audit.name}/certificate.json", "verdict", "program")
            if certificate is not None:
                self.certificates[int(audit.name[7:])] = certificate
        self.owners, self.shown, self.other_ledgers = Owners(), None, 0
        self.live: dict[str, dict[str, tuple[int, int]]] = {"entry": {}, "exit": {}}
        self.public = self.observed = self.strange = 0
        self.last_line = first
        if (folder / run_folder.STEPS).exists():
            self._read_steps()
        if self.summary is not None:
            self._compare()

    @property
    def passed(self) -> bool | None:
        """Whether nothing is wrong; None while it is not complete."""
        wrong = self.failure or self.faults or not all(p.passed for p in self.passes)
        wrong = wrong or not all(c["verdict"]["ok"] for c in self.certificates.values())
        if wrong or (self.summary and not self.summary["passed"]):
            return False
        return None if self.summary is None else True

    @property
    def reasons(self) -> list[str]:
        """What went wrong, in words, besides the files themselves."""
        failed = [
            f"{self.name}: the audit of the program of {tokens} token(s) failed"
            for tokens, certificate in self.certificates.items()
            if not certificate["verdict"]["ok"]
        ]
        bad = [p for p in self.passes if not p.passed]
        if bad:
            first = (bad[0].faults or ("its line says so",))[0]
            failed.append(
                f"{self.name}: {len(bad)} of {len(self.passes)} passes failed, the first is"
                f" {name_of(bad[0].step)}: {first}"
            )
        if self.summary and not self.summary["passed"]:
            known = {f"step {p.step}: {x}" for p in bad for x in p.faults}
            rest = [x for x in self.summary["faults"] if x not in known]
            failed += [f"{self.name}: {x}" for x in rest]
            if not failed:
                failed.append(f"{self.name}: its summary says that it failed")
        return failed

    def _json(self, name: str, *fields: str) -> dict | None:
        content, fault = read(self.folder / name, fields)
        if fault:
            self.faults.append(f"{self.name}/{name}: {fault}")
        return content

    def _read_steps(self) -> None:
        unreadable = 0
        for line in read_lines(self.folder / run_folder.STEPS, self.last_line):
            self.last_line = line.sha256
            try:
                if line.record is not None and line.faults:
                    self.faults.append(
                        f"{self.name}: step {line.record['step']} does not carry the hash of the"
                        " line before it"
                    )
                self._take(line.record)
            except MALFORMED:
                unreadable += 1
        if unreadable and self.failure is None:
            self.faults.append(f"{self.name}: {unreadable} line(s) of steps.jsonl cannot be read")

    def _take(self, record: dict) -> None:
        done = Pass.of(record)
        self.owners.count(record["ledger"])
        for when in self.live:
            for kind, value in record["live"][when].items():
                size = (value["arrays"], value["bytes"]) if kind != "unaccounted" else (
                    len(value), 0
                )
                self.live[when][kind] = max(size, self.live[when].get(kind, (0, 0)))
        if "ran" in record:
            self.observed += 1
            self.strange += bool(observed.faults(record["ran"]))
        if done.step >= 0:
            self.public += record["public"] is not None
            if self.shown is None:
                self.shown = record
            elif record["ledger"] != self.shown["ledger"]:
                self.other_ledgers += 1
        self.add(done)

    def _compare(self) -> None:
        """Where the summary says something else than the lines."""
        counted = {
            "steps": len(self.steps),
            "passed_steps": self.passed_steps,
            "median_seconds": self.median_seconds,
            "worst": self.worst or None,
            "last_line": self.last_line,
        }
        self.faults += [
            f"{self.name}: {fault}"
            for fault in contradictions(self.summary, counted, "its lines say")
        ]
        for tokens, certificate in self.certificates.items():
            ran = {p.hlo for p in self.passes if (p.step >= 0) == (tokens == 1)}
            if ran and ran != {certificate["program"]["sha256"]}:
                self.faults.append(
                    f"{self.name}: passes of {tokens} token(s) ran another program than the audited"
                )


def read(path: pathlib.Path, fields) -> tuple[dict | None, str | None]:
    """A JSON file that has these fields, and what is wrong if there is one that has not."""
    if not path.exists():
        return None, None
    try:
        content = files.read_json(path)
    except ValueError:
        return None, "it cannot be read"
    missing = [n for n in fields if n not in content] if isinstance(content, dict) else list(fields)
    return (None, f"it lacks {', '.join(missing)}") if missing else (content, None)


def contradictions(said: dict, counted: dict, where: str) -> list[str]:
    """What a summary says otherwise than its files; parity figures one by one."""
    flat = [
        {n: x for n, x in of.items() if n != "worst"}
        | {f"worst {n}": float(x) for n, x in (of["worst"] or {}).items()}
        for of in (said, counted)
    ]
    names = dict.fromkeys((*counted, *flat[0], *flat[1]))
    return [
        f"summary.json says {n} {flat[0].get(n)}, {where} {flat[1].get(n)}"
        for n in names
        if n in counted or n.startswith("worst ")
        if str(flat[0].get(n)) != str(flat[1].get(n))
    ]


def name_of(step: int) -> str:
    """A pass in words."""
    return f"step {step}" if step >= 0 else f"prefill pass {step}"
