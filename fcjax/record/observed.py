"""What runs while a pass runs, all of it: programs, copies between devices, reads by the host.

Reads by the host are noted in every pass (`host_reads`). Programs are seen in a profiler's trace,
which costs more than a small model's step; so a pass is traced if a byte from the system's random
numbers, drawn immediately before it, is small enough, and the last one of a start always. The byte
is in the record. Inside one process "chosen after the fact" holds in a weak sense only: a compiled
program cannot know of the draw, but Python that runs beside it could ask whether a profiler is on.
"""

import collections
import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence

import jax

from fcjax import audit
from fcjax.audit import trace
from fcjax.audit.hlo.graph import Module
from fcjax.decode.audited import Programs
from fcjax.record import host_reads
from fcjax.record.host_reads import HostReads
from fcjax.record.job import Job
from fcjax.sharded import programs as programs_of

TRACED_BELOW = 8  # of 256: about every thirty-second pass, as a trace costs several steps


def draw() -> int:
    """A byte that nobody can know before."""
    return os.urandom(1)[0]


def is_traced(job: Job, step: int, drawn: int | None) -> bool:
    """Whether a pass is to be traced: by its draw, or as the last one of a start."""
    return job.platform == "cpu" and (drawn < TRACED_BELOW or step == job.steps - 1)


class Observer:
    """Looks at what runs, one pass after the other.

    Attributes:
      reads: of the host in the pass that was last seen.
      trace: of that pass; None if it was not traced.
    """

    def __init__(self, job: Job, programs: Programs, kind: type):
        """
        Args:
          job: what the run is to do.
          programs: those that are handed out, all of them prepared.
          kind: the class of arrays.
        """
        self._job, self._programs = job, programs
        self.reads = HostReads(kind, job.batch * job.chunk)
        self.trace: trace.Trace | None = None
        self._drawn: int | None = None
        self._modules: dict[int, dict[str, Module]] = {}

    @contextlib.contextmanager
    def passing(self, step: int) -> Iterator[None]:
        """Around a pass, from before its entry until its values are there."""
        self.trace = None
        self._drawn = draw() if self._job.platform == "cpu" else None
        if not is_traced(self._job, step, self._drawn):
            with self.reads:
                yield
            return
        # What Python does is not looked at: it would cost more than the pass.
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder, profiler_options=options), self.reads:
                yield
            self.trace = trace.read(folder)

    def modules(self, tokens: int) -> dict[str, Module]:
        """The programs of a pass of T tokens by name, as they were compiled."""
        if tokens not in self._modules:
            self._modules[tokens] = {
                program.name: audit.parse(executable.as_text())
                for program, executable in self._programs.get(tokens)
            }
        return self._modules[tokens]

    def record(self, tokens: int) -> dict:
        """What was seen in the last pass, which was one of T tokens (docs/EVIDENCE.md, ran)."""
        seen = {"drawn": self._drawn, "programs": None, "unfinished": None, "copies": None}
        if self.trace is not None:
            seen["programs"] = _programs(self.trace, self.modules(tokens), self._job.nodes)
            seen["unfinished"] = self.trace.launches - len(self.trace.executions)
            seen["copies"] = self.trace.copies
        return seen | {"to_host": self.reads.rows()}


def _programs(seen: trace.Trace, modules: dict[str, Module], nodes: int) -> list[dict]:
    """A row for each program that was handed out for the pass, then for each other one."""
    rows = [
        _row(name, m.name, seen.of(m.name), trace.faults(m, seen.of(m.name), nodes, 1))
        for name, m in modules.items()
    ]
    for module, found in trace.others(seen, [m.name for m in modules.values()]).items():
        rows.append(_row(None, module, found, []))
    return rows


def _row(name: str | None, module: str, found: Sequence[trace.Execution], wrong: list[str]) -> dict:
    devices = collections.Counter(e.device for e in found)
    return {
        "program": name,
        "module": module,
        "runs": len({e.run for e in found}),
        "devices": sorted(devices),
        "faults": wrong,
    }


def expected_programs(job: Job, tokens: int) -> list[dict]:
    """The rows of a pass in which nothing ran but what was handed out for it."""
    devices = list(range(job.nodes))
    return [
        {"program": p.name, "module": f"jit_{p.fn.__name__}", "runs": 1, "devices": devices,
         "faults": []}
        for p in programs_of.of_pass(job.model(), tokens)
    ]


def faults(ran: dict) -> list[str]:
    """What ran in a pass and should not have, in words."""
    wrong = []
    for row in ran["programs"] or ():
        if row["program"] is None:
            name = row["module"] or "a program without instructions"
            wrong.append(
                f"expected no program but those that were handed out, got {name} {row['runs']}"
                f" times on devices {row['devices']}"
            )
        wrong += [f"program {row['program']}: {fault}" for fault in row["faults"]]
    if ran["unfinished"]:
        wrong.append(
            f"expected every program that was launched to end in the pass, got {ran['unfinished']}"
            " that did not"
        )
    if ran["copies"]:
        wrong.append(f"expected no copy between devices, got {ran['copies']}")
    wrong += [
        f"expected no read by the host while the pass ran, got {row['dtype']}{row['shape']}"
        for row in ran["to_host"]
        if row["as"] == host_reads.UNDECLARED
    ]
    return wrong
