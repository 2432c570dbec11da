"""Checks the lines of one start: against the prompt, against each other, and against the plan.

What a right line says follows from run.json and the audited program, but for the numbers that were
measured: those have to be of the right kind and inside their bounds.
"""

import math

import jax
import numpy as np

from fcjax.files import plain
from fcjax.model.params import param_shapes
from fcjax.record import host_reads, ledger, observed, reader, run_folder
from fcjax.record import line as line_schema
from fcjax.record.job import Job
from fcjax.record.ledger import Ledger
from fcjax.record.recorder import SAMPLE, step_faults
from fcjax.verify.faults import Faults

_CLASSES = ("weights", "caches", "values", "complete", "earlier_shards", "public", "reference",
            "before_the_run")


class Lines:
    """The lines of one start, checked one after the other.

    Attributes:
      lines: those that can be read.
      last: hash of the last line.
    """

    def __init__(self, folder, first: str, job: Job, start: int, faults: Faults):
        """
        Args:
          folder: of the start.
          first: hash of run.json.
          job: its content.
          start: its index.
          faults: where to put what is wrong.
        """
        self.job, self.start, self.faults = job, start, faults
        self._name = f"{folder.name}/{run_folder.STEPS}"
        self.lines, self.last = [], first
        for read in reader.read_lines(folder / run_folder.STEPS, first):
            self.last = read.sha256
            faults.found += [f"{folder.name}/{fault}" for fault in read.faults]
            if read.record is None:
                continue
            record = read.record | {"line": read.number}
            wrong = line_schema.fault(read.record, job.version)
            if wrong:
                faults.add(self._where(record), wrong)
            else:
                self.lines.append(record)

    def _where(self, line: dict) -> str:
        return f"{self._name} line {line['line']}"

    def check(self, attempt: int, executables: dict, verdicts: dict, devices: list[int]) -> None:
        """Check every line.

        Args:
          attempt: of the start.
          executables: by number of tokens, as the environment describes them.
          verdicts: of the audits, by number of tokens.
          devices: ids of the nodes' devices.
        """
        job = self.job
        books = {
            tokens: Ledger(job.model(), job.dtype, v, (job.batch, tokens, job.slots), devices)
            for tokens, v in verdicts.items()
        }
        rows = {tokens: plain(book.rows(book.as_planned())) for tokens, book in books.items()}
        passes = [(tokens.tolist(), pos.tolist()) for tokens, pos in job.passes(self.start)]
        prompts = job.ids(self.start)
        self._attempt = attempt
        self._executables = {
            tokens: {n: e.get(n) for n in ("tokens", "hlo_sha256", "fingerprint")}
            for tokens, e in executables.items()
        }
        state = [[int(p[-1])] for p in prompts], [len(p) - 1 for p in prompts]
        for number, line in enumerate(self.lines):
            try:
                state = self._line(line, number - len(passes), passes, state, books, rows)
            except (TypeError, KeyError, AttributeError, IndexError, ValueError) as e:
                self.faults.add(self._where(line), f"expected the record of a pass, got {e!r}")
                return
            if state is None:
                return  # what follows would be about other passes
        self._end(len(passes))

    def _line(self, line: dict, step: int, passes, expected, books, rows):
        """Check one line; returns what goes into the next step, or None if that is not known.

        Args:
          line: the record.
          step: what it should be.
          passes: tokens and positions of the prefill.
          expected: tokens and positions that go into the next decode step.
          books, rows: by number of tokens, the ledger and its rows.
        """
        job, where = self.job, self._where(line)
        tokens_in, position = passes[step] if step < 0 else expected
        tokens = job.chunk if step < 0 else 1

        def expect(field, right) -> bool:
            return self.faults.expect(where, {field: right}, {field: line[field]})

        expect("start", self.start)
        expect("attempt", self._attempt)
        if not expect("step", step):
            return None
        expect("tokens_in", tokens_in)
        expect("position", position)
        expect("executable", self._executables.get(str(tokens)))
        expect("ledger", rows[tokens])
        self._transfers(line, expect, books[tokens], step)
        self._caches(line, where)
        self._live(line, where)
        self._numbers(line, where, step)
        self._ran(line, expect, where, step, tokens)
        wrong = ledger.faults(line["ledger"]) + step_faults(line, job)
        expect("faults", wrong)
        expect("passed", not wrong)
        if step < 0:
            expect("tokens_out", None)
            return expected
        if not self._chosen(line, where):
            return None
        return line["tokens_out"], [p + 1 for p in position]

    def _transfers(self, line, expect, book: Ledger, step: int) -> None:
        expect("copies_agree", None if book.outside is None else True)
        outside = book.outside and book.outside | {"copies_agree": True}
        expect("outside_the_claim", plain(outside))
        public = None
        if book.public is not None and step >= 0:
            public = {"tokens": line["tokens_out"], "reductions": plain(book.public)}
        expect("public", public)

    def _chosen(self, line, where) -> bool:
        out, size = line["tokens_out"], self.job.cfg.V
        right = (
            type(out) is list
            and len(out) == self.job.batch
            and all(type(row) is list and len(row) == 1 and type(row[0]) is int for row in out)
        )
        if not right or not all(0 <= row[0] < size for row in out):
            self.faults.add(where, f"field tokens_out: expected ids below {size}, got {out}")
        return right

    def _ran(self, line, expect, where: str, step: int, tokens: int) -> None:
        """A draw for each pass, and nothing but the programs that were handed out in the traced."""
        job = self.job
        if job.version < 3:
            expect("traced", step == job.steps - 1 and job.platform == "cpu")
            return
        ran, drawn = line["ran"], line["ran"]["drawn"]
        if type(drawn) is not (int if job.platform == "cpu" else type(None)) or (
            drawn is not None and not 0 <= drawn < 256
        ):
            self.faults.add(where, f"field ran.drawn: expected a byte, got {drawn}")
            return
        traced = observed.is_traced(job, step, drawn)
        expect("traced", traced)
        right = {
            "programs": observed.expected_programs(job, tokens) if traced else None,
            "unfinished": 0 if traced else None,
            "copies": 0 if traced else None,
        }
        self.faults.expect(where, {"ran": right | {"drawn": drawn}},
                           {"ran": {n: x for n, x in ran.items() if n != "to_host"}})
        for row in ran["to_host"]:
            public = host_reads.is_public(row["dtype"], row["shape"], job.batch * job.chunk)
            kind = host_reads.PUBLIC if public else host_reads.OBSERVATION
            if row["as"] != kind or not (type(row["times"]) is int and row["times"] > 0):
                self.faults.add(where, f"field ran.to_host: expected a read as {kind}, got {row}")

    def _end(self, prefill: int) -> None:
        """Enough steps, unless every row had ended."""
        job, steps = self.job, self.lines[prefill:]
        ended = np.zeros(job.batch, bool)
        for line in steps[:-1]:
            ended |= np.isin([row[0] for row in line["tokens_out"]], job.eos)
            if ended.all():
                self.faults.add(self._where(line), "expected no step after the end of every row")
                return
        if steps:
            ended |= np.isin([row[0] for row in steps[-1]["tokens_out"]], job.eos)
        if len(steps) != job.steps and not ended.all():
            self.faults.add(self._name, f"expected {job.steps} decode steps, got {len(steps)}")

    def _caches(self, line, where: str) -> None:
        caches, job = line["caches"], self.job
        addresses = self.lines[0]["caches"]["addresses"]
        self.faults.expect(where, {"caches": {"addresses": addresses, "moved": False}},
                           {"caches": caches})
        flat = [a for layer in caches["addresses"] for buffers in layer for a in buffers]
        count = job.interval.depth * 2 * job.nodes
        if len(flat) != count or len(set(flat)) != len(flat):
            self.faults.add(
                where,
                f"field caches.addresses: expected {count} different ones, got {len(set(flat))} of"
                f" {len(flat)}",
            )

    def _live(self, line, where: str) -> None:
        """Classes whose arrays are known beforehand must have as many, and as many bytes."""
        job, model = self.job, self.job.model()
        cache = sum(
            math.prod(model.plan.state_shape(n, B=job.batch, S=job.slots))
            for n in ("cache_k", "cache_v")
        )
        itemsize = jax.numpy.dtype(job.dtype).itemsize
        expected = {"caches": {"arrays": 2 * job.cfg.L, "bytes": cache * job.cfg.L * itemsize}}
        for when in ("entry", "exit"):
            classes = line["live"].get(when)
            if type(classes) is not dict:
                self.faults.add(where, f"field live.{when}: expected classes, got {classes}")
                continue
            at = f"{where} field live.{when}"
            self.faults.expect(at, [], classes.get("unaccounted"))
            self.faults.expect(at, expected["caches"], classes.get("caches"))
            unknown = sorted(classes.keys() - {*_CLASSES, "unaccounted"})
            if unknown:
                self.faults.add(at, f"expected known classes, got {unknown}")
            counts = {n: classes.get(n, {}).get("arrays", 0) for n in _CLASSES}
            right = {
                "weights": len(param_shapes(job.cfg)),
                "complete": 2 if when == "exit" and not model.whole else 0,
            }
            self.faults.expect(at, right, {n: counts[n] for n in right})
            if (counts["reference"] > 0) != job.compared:
                self.faults.add(at, f"expected a reference: {job.compared}, got {counts}")

    def _numbers(self, line, where: str, step: int) -> None:
        job = self.job
        names = ["residual"]
        names += [] if job.model().whole else ["qkv"]
        names += ["logits"] if step >= 0 else []
        hashes = line["numbers"].get("sha256", {})
        if sorted(hashes) != sorted(names) or not all(_is_sha256(h) for h in hashes.values()):
            self.faults.add(
                where, f"field numbers.sha256: expected hashes of {names}, got {hashes}"
            )
        for name in ("residual", "logits") if step >= 0 else ():
            numbers = line["numbers"].get(name, {})
            norm, sample = numbers.get("norm", []), numbers.get("sample", [])
            flat = [*norm, *(x for row in sample for x in row)]
            sizes = (len(norm), len(flat) - len(norm))
            if sizes != (job.batch, job.batch * SAMPLE) or not all(map(_is_number, flat)):
                self.faults.add(
                    where, f"field numbers.{name}: expected finite numbers, got {numbers}"
                )
        parity = ["residual", *([] if job.model().whole else "qkv")]
        parity += ["logits"] if step >= 0 else []
        figures = line["parity"]
        if not job.compared:
            self.faults.expect(where, {"parity": None}, {"parity": figures})
        elif type(figures) is not dict or sorted(figures) != sorted(parity):
            self.faults.add(where, f"field parity: expected figures of {parity}, got {figures}")
        else:
            for name, x in figures.items():
                # One that is above the bound is a fault of the run, and must be among its faults.
                if not (_is_number(x) and 0 <= x) and x not in ("inf", "nan"):
                    self.faults.add(where, f"field parity.{name}: expected 0 or more, got {x}")
        for name, positive in (("seconds", True), ("recording_seconds", False)):
            x = line[name]
            if not _is_number(x) or x < 0 or (positive and x == 0):
                self.faults.add(where, f"field {name}: expected a time, got {x}")


def _is_number(x) -> bool:
    return type(x) in (int, float) and math.isfinite(x)


def _is_sha256(x) -> bool:
    return type(x) is str and len(x) == 64 and set(x) <= set("0123456789abcdef")
