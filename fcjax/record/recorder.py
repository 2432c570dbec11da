"""The record of one pass: what was looked at while it ran, and what is known of its program.

Put a `Recorder` beside a decoder before its first pass, run each pass inside `observer.passing`,
and call `record` after it.
"""

import json
import re
import time

import jax
import numpy as np

from fcjax import files
from fcjax.decode.decoder import Decoder
from fcjax.decode.loop import Step
from fcjax.record import ledger, line, observed
from fcjax.record.chain import Chain
from fcjax.record.job import Job
from fcjax.record.ledger import Ledger, Place
from fcjax.record.line import finite
from fcjax.record.live_arrays import Live
from fcjax.record.observed import Observer
from fcjax.record.transfers import restored
from fcjax.sharded import layout

SAMPLE = 8  # values of a row that are written down


class Recorder:
    """Watches the interval and appends a line to `steps.jsonl` after every pass.

    Attributes:
      chain: the file.
      observer: of what runs in a pass.
      executables: by number of tokens, what ran: HLO hash and fingerprint.
      seconds: spent on recording so far.
    """

    def __init__(self, job: Job, decoder: Decoder, chain: Chain, start: int, attempt: int,
                 oracle=None):
        """
        Args:
          job: what the run is to do.
          decoder: before its first pass; every program that it will run is prepared.
          chain: an empty one.
          start, attempt: which cold start this is, and how many attempts at it failed before.
          oracle: the unsharded reference in this process, if there is one.
        """
        self.chain, self.seconds = chain, 0.0
        self._job, self._decoder = job, decoder
        self._who = {"start": start, "attempt": attempt}
        programs, model = decoder.programs, decoder.programs.model
        self._devices = [d.id for d in programs.layout.mesh.devices.flat]
        self.executables, self._ledgers = {}, {}
        for tokens, verdict in programs.audits.items():
            self.executables[tokens] = describe_executable(programs, tokens)
            self._ledgers[tokens] = Ledger(
                model, job.dtype, verdict, (job.batch, tokens, programs.slots), self._devices
            )
        self._texts: dict[tuple, tuple[str, list[str]]] = {}
        self._addresses = None
        self._live = Live(decoder, oracle)
        self.observer = Observer(job, programs, type(decoder.caches[0][0]))
        self._seen: dict = {}
        self._before = 0.0  # spent since the line before was begun
        decoder.watch = self._watch

    def _watch(self, when: str, values: dict[str, jax.Array]) -> None:
        start = time.perf_counter()
        # Looking into padding copies it to the host.
        with jax.transfer_guard("allow"), self.observer.reads.declared():
            book = self._ledgers[values["tokens"].shape[1]]
            if when == "entry":
                self._seen = {"live": {}, "found": {}}
            self._seen["found"] |= book.measure(
                lambda place, state: self._array(place, state, values), when == "entry"
            )
            self._seen["live"][when] = self._live.look(values)
        self._before += time.perf_counter() - start

    def record(self, step: Step, shards: dict[str, np.ndarray], parity=None, agree=None) -> dict:
        """Append the line of a pass; it is on disk when this returns.

        Args:
          step: the pass that has just run.
          shards: its values on the host, as `Output.shards` gives them.
          parity: figures of the comparison with the reference, if there was one.
          agree: whether the complete copies equal the shards; None if there are none.

        Returns:
          The line's content without the ledger.
        """
        start = time.perf_counter()
        tokens = step.tokens_in.shape[1]
        book, found = self._ledgers[tokens], self._seen["found"]
        key = (tokens, tuple(found.items()))
        if key not in self._texts:
            rows = book.rows(found)
            self._texts[key] = json.dumps(rows), ledger.faults(rows)
        text, faults = self._texts[key]
        fields = self._who | {
            "step": step.index,
            "position": step.pos.tolist(),
            "tokens_in": step.tokens_in.tolist(),
            "tokens_out": None if step.tokens_out is None else step.tokens_out.tolist(),
            "executable": {n: self.executables[tokens][n] for n in _NAMED},
            "outside_the_claim": self._outside(book, step, agree),
            "public": self._public(book, step),
            "caches": self._caches(),
            "live": self._seen["live"],
            "numbers": numbers(shards, rows=tokens == 1),
            "parity": parity and {name: finite(error) for name, error in parity.items()},
            "copies_agree": agree,
            "seconds": step.output.seconds,
            "traced": self.observer.trace is not None,
            "ran": self.observer.record(tokens),
        }
        fields["faults"] = faults + step_faults(fields, self._job)
        fields["passed"] = not fields["faults"]
        spent = self._before + time.perf_counter() - start
        fields["recording_seconds"] = spent
        self.seconds += spent
        start = time.perf_counter()
        self.chain.append(line.encode(fields, text))
        self._before = time.perf_counter() - start
        return fields

    def close(self) -> float:
        """Seconds that recording took, the last line's writing included."""
        self._decoder.watch = None
        self.chain.close()
        return self.seconds + self._before

    def _array(self, place: Place, state: str, values) -> jax.Array:
        if place.value != "cache":
            return values[place.value]
        return self._decoder.caches[place.layer][layout.CACHE.index(state)]

    def _caches(self) -> dict:
        addresses = [
            [[_address(s) for s in array.addressable_shards] for array in layer]
            for layer in (self._decoder.caches[i] for i in self._job.interval.layers)
        ]
        moved = self._addresses is not None and addresses != self._addresses
        self._addresses = addresses
        return {"addresses": addresses, "moved": moved}

    def _outside(self, book: Ledger, step: Step, agree) -> dict | None:
        if book.outside is None:
            return None
        copies = {}
        for name in layout.names(layout.COMPLETE):
            held = step.output.values[name].addressable_shards
            copies[name] = restored([x.device.id for x in held], held[0].data.nbytes)
        return book.outside | {"restored": copies, "copies_agree": agree}

    def _public(self, book: Ledger, step: Step) -> dict | None:
        if book.public is None or step.tokens_out is None:
            return None
        return {"tokens": step.tokens_out.tolist(), "reductions": book.public}


_NAMED = ("tokens", "hlo_sha256", "fingerprint")


def describe_executable(programs, tokens: int) -> dict:
    """Which executables a pass of T tokens runs, by the hash of their HLO."""
    compiled = {p.name: executable for p, executable in programs.get(tokens)}
    text = compiled["interval"].as_text()
    fingerprint = getattr(compiled["interval"].runtime_executable(), "fingerprint", None)
    if isinstance(fingerprint, bytes):
        fingerprint = fingerprint.decode(errors="replace")
    return {
        "tokens": tokens,
        "name": text.split(",", 1)[0].removeprefix("HloModule "),
        "hlo_sha256": files.sha256(text.encode()),
        "program_sha256": program_sha256(text),
        "fingerprint": fingerprint,
        "others": {
            name: program_sha256(executable.as_text())
            for name, executable in compiled.items()
            if name != "interval"
        },
    }


_SOURCE_TABLES = re.compile(r"\n(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:.+\n)*")
_SOURCE_NOTE = re.compile(r" ?stack_frame_id=\d+")


def program_sha256(text: str) -> str:
    """Hash of HLO text without its notes on which lines of Python it came from.

    The same program compiled by another caller has another text, but the same hash.
    """
    return files.sha256(_SOURCE_NOTE.sub("", _SOURCE_TABLES.sub("\n", text)).encode())


def numbers(shards: dict[str, np.ndarray], rows: bool) -> dict:
    """Hashes of the values that the nodes left, and a few of the values, to compare them later.

    Args:
      shards: by name, without padding.
      rows: also write down each row's norm and `SAMPLE` values spread over it.
    """
    out = {"sha256": {n: files.sha256(np.ascontiguousarray(x)) for n, x in shards.items()}}
    if rows:
        for name in ("residual", "logits"):
            table = shards[name].reshape(shards[name].shape[0], -1)
            at = np.linspace(0, table.shape[1] - 1, SAMPLE).astype(int)
            norms = np.linalg.norm(table.astype(np.float64), axis=1)
            sample = table[:, at].astype(np.float64)
            out[name] = {
                "norm": [finite(x) for x in norms.tolist()],
                "sample": [[finite(x) for x in row] for row in sample.tolist()],
            }
    return out


def step_faults(fields: dict, job: Job) -> list[str]:
    """What is wrong in a pass besides its ledger, in words; `fields` of any version."""
    faults = [
        f"parity of {name}: expected at most {job.bound:.0e}, got {float(error):.1e}"
        for name, error in (fields["parity"] or {}).items()
        if not float(error) <= job.bound
    ]
    for when, found in fields["live"].items():
        faults += [
            f"{when}: expected no array that is unaccounted for or a complete state tensor, got"
            f" {a['dtype']}{a['shape']} on devices {a['devices']}"
            for a in found["unaccounted"]
        ]
    if fields["copies_agree"] is False:
        faults.append("expected complete copies that equal the shards, got others")
    if fields["caches"]["moved"]:
        faults.append("expected caches that stay where they are, got other addresses")
    return faults + (observed.faults(fields["ran"]) if "ran" in fields else [])


def _address(shard) -> int:
    return shard.data.unsafe_buffer_pointer()
