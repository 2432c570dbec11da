"""One cold start: open, compile, audit, load, decode beside the reference, record.

Everything it is to do stands in the job. It leaves a folder `start_<i>`, whose summary is written
last: a start without one was cut off.
"""

import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Iterable

import jax
import numpy as np

from fcjax import audit, files, hub
from fcjax.audit import trace
from fcjax.decode import parity
from fcjax.decode.audited import Programs
from fcjax.decode.decoder import Decoder
from fcjax.decode.loop import Step, decode
from fcjax.mesh import make_mesh
from fcjax.model import checkpoint
from fcjax.record import certificate, environment, ledger, reader, run_folder
from fcjax.record.chain import Chain
from fcjax.record.job import Job
from fcjax.record.line import finite
from fcjax.record.observed import Observer
from fcjax.record.recorder import Recorder, describe_executable
from fcjax.record.summary import of_steps, start_faults
from fcjax.sharded import layout
from fcjax.text.tokenizer import Text


class Start:
    """One cold start; its three stages in order are `prepare`, `load` and `decode`.

    Attributes:
      folder: of its record.
      verdicts: by number of tokens, after the audits, whether or not they were passed.
      programs: compiled and audited, after `prepare`.
      recorder: after `load`.
      summary: the start's figures, after `decode`.
    """

    def __init__(self, folder: pathlib.Path, job: Job, index: int):
        """
        Args:
          folder: of the run; holds run.json.
          job: its content.
          index: of the start.

        Raises:
          ValueError: the start is there already.
        """
        self.folder = reader.start_folder(folder, index)
        self.job, self.index = job, index
        self.attempt = reader.next_attempt(folder, index)
        self._first = reader.run_sha256(folder)
        self._seconds: dict[str, float] = {}
        self.verdicts: dict[int, audit.Verdict] = {}
        # A compiled program from elsewhere would be no cold start.
        jax.config.update("jax_enable_compilation_cache", False)
        try:
            self.folder.mkdir()
        except FileExistsError:
            raise ValueError(
                f"start {index}: expected none before, got one ({self.folder})"
            ) from None

    def prepare(self) -> Programs:
        """Open the model folder, compile and audit; write what is known then.

        Raises:
          ValueError: the weights are not those of the job.
          audit.Failed: of the first program that did not pass; the certificates are written.
        """
        job, begun = self.job, time.time()
        folder = hub.model_folder(job.model_path)
        with self._timed("open"):
            self.source, self.text = checkpoint.open_folder(folder), Text(folder)
        if self.source.digest != job.weights_sha256:
            raise ValueError(
                f"weights: expected digest {job.weights_sha256}, got {self.source.digest}"
                f" ({folder})"
            )
        self.model, self.layout = job.model(), job.layout(make_mesh(job.nodes))
        self.programs = Programs(self.layout, job.batch, job.length, job.chunk)
        with self._timed("compile_and_audit"):
            for tokens in job.tokens:
                self.programs.prepare(tokens)
        self.verdicts = verdicts = self.programs.audits
        for tokens, verdict in verdicts.items():
            self._certify(tokens, verdict)
        failed = [verdict for verdict in verdicts.values() if not verdict.ok]
        ran = {} if failed else {t: describe_executable(self.programs, t) for t in job.tokens}
        files.write_json(
            self.folder / run_folder.ENVIRONMENT,
            {
                "start": self.index,
                "attempt": self.attempt,
                "process": {"pid": os.getpid(), "started": begun, "command": _command()},
                **environment.describe(self.layout),
                "recorded_apart": {
                    "model": job.model_path,
                    "context_length": job.length,
                    "batch": job.batch,
                    "dtype": job.dtype,
                },
                "executables": ran,
                "seconds": dict(self._seconds),
            },
        )
        if failed:
            raise audit.Failed(failed[0])
        return self.programs

    def _certify(self, tokens: int, verdict: audit.Verdict) -> None:
        """The program and its certificate, in a folder that is there whole or not at all."""
        folder = self.folder / f"audit_T{tokens}"
        beside = folder.with_name(f".{folder.name}.tmp")
        beside.mkdir()
        certificate.write(
            beside, verdict, self.model,
            batch=self.job.batch, tokens=tokens, length=self.programs.slots,
            dtype=self.job.dtype,
            weights=self.job.weights_sha256,
            platform_version=jax.devices()[0].client.platform_version,
        )
        for file in beside.iterdir():
            with open(file, "rb") as f:
                os.fsync(f.fileno())
        beside.rename(folder)
        files.sync_folder(self.folder)

    def load(self) -> None:
        """Each node's blocks, and the unsharded reference if the job compares."""
        job = self.job
        with self._timed("load"):
            params = self.source.load(self.layout.params())
            self._decoder = Decoder(self.programs, params, seed=job.seed)
            self._oracle = None
            if job.compared:
                slots = self.programs.slots
                self._oracle = parity.Oracle(self.source, job.interval, job.batch, slots)
        chain = Chain(self.folder / run_folder.STEPS, self._first)
        self.recorder = Recorder(job, self._decoder, chain, self.index, self.attempt, self._oracle)

    def decode(self, progress: Callable[[Iterable[Step]], Iterable[Step]] = iter) -> dict:
        """Decode, compare and record; writes and returns the summary.

        Args:
          progress: called with the iterator of passes, returns it wrapped (a progress bar).
        """
        begun = time.perf_counter()
        self._trace = None
        try:
            lines = [self._record(step) for step in progress(self._passes())]
        except BaseException:
            self.recorder.chain.abandon()
            raise
        self._seconds["decode"] = time.perf_counter() - begun
        recording = self.recorder.close()
        self.summary = self._summary(lines, recording)
        files.write_json(self.folder / run_folder.SUMMARY, self.summary)
        return self.summary

    def _record(self, step: Step) -> dict:
        """Compare one pass, and append its line."""
        shards = step.output.shards(self.job.cfg)
        figures = None
        if self._oracle is not None:
            reference = self._oracle.step(step.tokens_in, step.pos)
            figures = parity.compare(self.job.cfg, shards, reference, step.own)
        agree = None if self.model.whole else step.output.copies_agree(shards)
        line = self.recorder.record(step, shards, figures, agree)
        # So that no complete value of this pass is left when the next one enters the interval.
        for name in layout.names(layout.COMPLETE):
            if name in step.output.values:
                step.output.values[name].delete()
        return line

    def _passes(self):
        """The passes, each of them observed from before its entry until after its exit."""
        steps = decode(self._decoder, self.job.ids(self.index), self.job.steps, self.job.eos)
        for number in range(-len(self.job.passes(self.index)), self.job.steps):
            with self.recorder.observer.passing(number):
                step = next(steps, None)
            if step is None:
                return
            if number == self.job.steps - 1 and self.recorder.observer.trace is not None:
                self._trace = self._collectives(self.recorder.observer, number)
            yield step

    def _collectives(self, observer: Observer, step: int) -> dict:
        """Which collectives really ran on which device in the last step."""
        module = observer.modules(1)["interval"]
        events = observer.trace.of(module.name)
        planned = set(trace.planned(module))
        return {
            "step": step,
            "executions": [
                {
                    "device": e.device,
                    "collectives": {n: k for n, k in e.instructions.items() if n in planned},
                }
                for e in events
            ],
            "faults": trace.faults(module, events, self.job.nodes, 1),
        }

    def _summary(self, lines: list[dict], recording: float) -> dict:
        counted = of_steps(lines, self.job)
        programs = sum(x["seconds"] for x in lines)
        summary = {
            "start": self.index,
            "attempt": self.attempt,
            **counted,
            "text": [self.text.decode(row) for row in counted["tokens"]],
            "caches": self._compare_caches(lines[-1]["position"]),
            "trace": self._trace,
            "recording": {"seconds": recording, "share": recording / programs},
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "seconds": self._seconds | {"programs": programs},
            "last_line": self.recorder.chain.last,
        }
        summary["faults"] = summary["faults"] + start_faults(summary, self.job)
        summary["passed"] = not summary["faults"]
        return summary

    def _compare_caches(self, position) -> dict:
        """Every layer's cache against the reference's, and the padding of every shard."""
        plan, cfg = self.model.plan, self.job.cfg
        devices = [d.id for d in self.layout.mesh.devices.flat]
        ends = [p + 1 for p in position]  # slots after are room, or a chunk's filling
        zero, layers = True, []
        for i, layer in enumerate(self._decoder.caches):
            figures = {}
            for name, array in zip(("k", "v"), layer, strict=True):
                shards = ledger.measure(array, 1, plan.split("K"), devices)
                zero &= all(s.padding_zero for s in shards)
                if self._oracle is None:
                    continue
                ours = np.asarray(jax.device_get(array))[:, : cfg.K]
                theirs = np.asarray(self._oracle.cache[i][name == "v"])
                figures[name] = finite(parity.row_error(_rows(ours, ends), _rows(theirs, ends)))
            layers.append(figures)
        worst = [float(x) for figures in layers for x in figures.values()]
        return {
            "rows": int(sum(ends)),
            "layers": layers if worst else None,
            "worst": finite(max(worst)) if worst else None,
            "padding_zero": bool(zero),
        }

    def _timed(self, name: str):
        return _Timed(self._seconds, name)


def _command() -> list[str]:
    """This process's program and arguments, without the folder that the program lies in."""
    return [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]


def _rows(cache_BKSH, ends) -> np.ndarray:
    """A row for each token that a row of the batch holds: its K groups side by side."""
    rows = [np.moveaxis(x[:, :end], 1, 0) for x, end in zip(cache_BKSH, ends, strict=True)]
    return np.concatenate([x.reshape(x.shape[0], -1) for x in rows])


class _Timed:
    def __init__(self, seconds: dict[str, float], name: str):
        self._seconds, self._name = seconds, name

    def __enter__(self):
        self._start = time.perf_counter()

    def __exit__(self, *_):
        self._seconds[self._name] = time.perf_counter() - self._start
