"""What really ran: the programs in a profiler trace, against those that were handed out.

On CPU, XLA's profiler leaves one event for each executed instruction and device, with the names of
the instruction and of its module (`hlo_op`, `hlo_module`), the execution (`run_id`) and the device
(`device_ordinal`), and one for each execution on a device, also of a program that has nothing to
execute. So "the program that ran is the one that was audited" can be checked by name and by count:
in each execution each device must have run each collective of the program once, and no other. And
what ran besides is seen: another program, and a copy from one device's memory to another's.
"""

import collections
import dataclasses
import pathlib
import warnings
from collections.abc import Iterable, Iterator

import jax

from fcjax.audit.hlo.graph import Module, Unauditable
from fcjax.audit.rules import traffic

_STARTS = tuple(sorted(traffic.COLLECTIVES | traffic.TRANSFERS))
# Names of events: a program is sent to one device; it runs there; a buffer goes to another place.
_LAUNCH = "CommonPjRtLoadedExecutable::ExecutePrepare"
_EXECUTION = "ThunkExecutor::Execute (wait for completion)"
_COPY = "CopyToMemorySpace"


@dataclasses.dataclass(frozen=True)
class Execution:
    """One run of one program on one device.

    Attributes:
      run: the runtime's number of the execution, the same on all its devices.
      device: ordinal of the device.
      module: name of the program; "" if it had nothing to execute.
      instructions: how often each instruction of the program ran.
    """

    run: int
    device: int
    module: str
    instructions: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Trace:
    """All that ran while a trace was taken.

    Attributes:
      executions: of every program, on every device.
      launches: how many executions were begun; more than there are if one had not ended.
      copies: how many buffers were copied to another device, or to another memory of it.
    """

    executions: tuple[Execution, ...]
    launches: int
    copies: int

    def of(self, module_name: str) -> list[Execution]:
        """The executions of one program."""
        return [e for e in self.executions if e.module == module_name]


def read(folder) -> Trace:
    """The trace that ``jax.profiler.trace(folder)`` wrote.

    Raises:
      Unauditable: there is none.
    """
    files = sorted(pathlib.Path(folder).rglob("*.xplane.pb"))
    if not files:
        raise Unauditable(f"{folder}: expected a trace of the profiler, got none")
    ran: dict[tuple[int, int], collections.Counter] = {}
    modules: dict[tuple[int, int], str] = {}
    names: collections.Counter = collections.Counter()
    for name, stats in _events(files):
        names[name] += 1
        if "hlo_op" not in stats and name != _EXECUTION:
            continue
        key = int(stats["run_id"]), int(stats["device_ordinal"])
        ops = ran.setdefault(key, collections.Counter())
        if "hlo_op" in stats:
            ops[str(stats["hlo_op"])] += 1
            modules[key] = str(stats["hlo_module"])
    executions = (Execution(*key, modules.get(key, ""), dict(ops)) for key, ops in ran.items())
    executions = sorted(executions, key=lambda e: (e.run, e.device))
    return Trace(tuple(executions), names[_LAUNCH], names[_COPY])


def _events(files) -> Iterator[tuple[str, dict]]:
    """Name of each event, and what the profiler says of it."""
    with warnings.catch_warnings():
        # jaxlib 0.12 makes its types when they are first used, and Python 3.12 warns of how; where
        # warnings are errors that ends the process.
        warnings.simplefilter("ignore", DeprecationWarning)
        for file in files:
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
                for line in plane.lines:
                    yield from ((event.name, dict(event.stats)) for event in line.events)


def planned(module: Module) -> list[str]:
    """Names of the instructions of a program that start a transfer, in the order of the schedule.

    The program must be straight: an audit that passed has seen to that.
    """
    return [
        i.name
        for computation, straight in traffic.reachable(module).items()
        for i in computation.instructions
        if straight and i.opcode in _STARTS
    ]


def faults(module: Module, found: list[Execution], nodes: int, runs: int) -> list[str]:
    """Where a trace disagrees with the audited program; empty if it agrees.

    Args:
      module: the audited program.
      found: the executions under its name.
      nodes: how many devices run it.
      runs: how often it was run while the trace was taken.
    """
    expected = planned(module)
    known = {i.name: i for c in module.computations for i in c.instructions}
    out = []
    by_run = collections.defaultdict(list)
    for execution in found:
        by_run[execution.run].append(execution.device)
    if len(by_run) != runs:
        out.append(f"expected {runs} executions of {module.name}, got {len(by_run)}")
    for run, on in by_run.items():
        if sorted(on) != list(range(nodes)):
            out.append(f"run {run}: expected devices 0 to {nodes - 1}, got {sorted(on)}")
    for e in found:
        where = f"run {e.run}, device {e.device}"
        ran = {n: k for n, k in e.instructions.items() if n in known and n in expected}
        if ran != dict.fromkeys(expected, 1):
            out.append(f"{where}: expected each of {expected} once, got {ran}")
        strange = sorted(set(e.instructions) - set(known))
        if strange:
            out.append(f"{where}: ran {strange}, which the audited program does not have")
    return out


def others(trace: Trace, known: Iterable[str]) -> dict[str, list[Execution]]:
    """The executions of programs that are none of these, by the name of their module."""
    known, strange = set(known), {}
    for e in trace.executions:
        if e.module not in known:
            strange.setdefault(e.module, []).append(e)
    return strange
