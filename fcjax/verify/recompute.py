"""Runs recorded steps again, and holds the numbers against the record.

A step is reached as it was in the run: the same prefill passes, then the recorded tokens one by
one. So where the programs, their compiler and the machine are the same, every number must be equal
bit for bit, and the hashes of the values are compared. Anywhere else two sound runs differ by
rounding: there each recorded value may differ by twice the parity bound of its row's norm, once for
each run's distance from the exact result, and the chosen token must still be the same one.
"""

import random

import jax
import numpy as np

from fcjax import files, hub
from fcjax.decode.audited import Programs
from fcjax.decode.decoder import Decoder
from fcjax.mesh import make_mesh
from fcjax.model import checkpoint
from fcjax.record import environment, recorder, run_folder
from fcjax.record.job import Job
from fcjax.verify.faults import Faults


class Recompute:
    """The programs of a run, compiled again.

    Attributes:
      chosen: the steps that are compared, (start, step).
      replayed: passes that were run to reach them.
      exact: how many of the chosen steps had to be equal bit for bit.
    """

    def __init__(self, folder, job: Job, model_path: str | None = None):
        """
        Args:
          folder: of the run.
          job: its content.
          model_path: where the weights are, if not where they were.

        Raises:
          ValueError: they are not the weights of the run.
        """
        path = hub.model_folder(model_path or job.model_path)
        self._source = checkpoint.open_folder(path)
        if self._source.digest != job.weights_sha256:
            raise ValueError(
                f"weights: expected digest {job.weights_sha256}, the run's, got"
                f" {self._source.digest} ({path})"
            )
        self._folder, self._job = folder, job
        layout = job.layout(make_mesh(job.nodes))
        self._programs = Programs(layout, job.batch, job.length, job.chunk)
        self._compiled = {}
        for tokens in job.tokens:
            self._programs.prepare(tokens)
            self._compiled[tokens] = recorder.describe_executable(self._programs, tokens)
        self._params = self._source.load(layout.params())
        self._here = environment.describe(layout)
        self.chosen: list[tuple[int, int]] = []
        self.replayed = self.exact = 0

    def check(self, lines: dict[int, list[dict]], count: int, faults: Faults, seed=None) -> None:
        """Run `count` steps, drawn from all, again.

        Args:
          lines: of every start, checked.
          count: how many; all if there are fewer.
          faults: where to put what is wrong.
          seed: of the draw; by default another one each time.
        """
        steps = [(i, x["step"]) for i, found in lines.items() for x in found if x["step"] >= 0]
        self.chosen = sorted(random.Random(seed).sample(steps, min(count, len(steps))))
        for start in sorted({i for i, _ in self.chosen}):
            self._replay(start, lines[start], faults)

    def _replay(self, start: int, lines: list[dict], faults: Faults) -> None:
        wanted = {step for i, step in self.chosen if i == start}
        name = f"start_{start}"
        there = files.read_json(self._folder / name / run_folder.ENVIRONMENT)
        same = self._same(there)
        decoder = Decoder(self._programs, self._params, seed=self._job.seed)
        decoder.begin(self._job.ids(start))
        for line in lines:
            if line["step"] > max(wanted):
                return
            output = decoder.step(
                np.array(line["tokens_in"], np.int32), np.array(line["position"], np.int32)
            )
            self.replayed += 1
            if line["step"] not in wanted:
                continue
            where = f"{name}/{run_folder.STEPS} line {line['line']} (computed again)"
            again = recorder.numbers(output.shards(self._job.cfg), rows=True)
            token = jax.device_get(output.next_tokens).tolist()
            faults.expect(where, {"tokens_out": token}, {"tokens_out": line["tokens_out"]})
            if same:
                self.exact += 1
                faults.expect(where, {"numbers": again}, {"numbers": line["numbers"]})
            else:
                self._compare(where, again, line["numbers"], faults)

    def _compare(self, where: str, here: dict, there: dict, faults: Faults) -> None:
        for name in ("residual", "logits"):
            norms = np.array(here[name]["norm"])[:, None]
            ours, theirs = (np.array(x[name]["sample"], np.float64) for x in (here, there))
            if ours.shape != theirs.shape:
                faults.add(where, f"field numbers.{name}.sample: expected shape {ours.shape}")
                continue
            error = float(np.max(np.abs(ours - theirs) / norms))
            if not error <= 2 * self._job.bound:
                faults.add(
                    where,
                    f"field numbers.{name}.sample: expected a difference of at most"
                    f" {2 * self._job.bound:.0e} of the row, got {error:.1e}",
                )

    def _same(self, there: dict) -> bool:
        """Whether programs, compiler and machine are those of the record."""
        programs = {str(t): e for t, e in self._compiled.items()}
        hashes = lambda found: {  # noqa: E731
            t: (e["program_sha256"], e["others"]) for t, e in found.items()
        }
        same = ("versions", "hardware", "settings")
        return hashes(programs) == hashes(there["executables"]) and all(
            files.plain(self._here[n]) == there[n] for n in same
        )
