"""What really ran: the collectives in a profiler trace, against those of the audited program.

On CPU, XLA's profiler leaves one event for each executed instruction and device, with the names of
the instruction and of its module (`hlo_op`, `hlo_module`), the execution (`run_id`) and the device
(`device_ordinal`). So "the program that ran is the one that was audited" can be checked by name and
by count: in each execution each device must have run each collective of the program once, and no
other.
"""

import collections
import dataclasses
import pathlib
import warnings
from collections.abc import Iterator

import jax

from fcjax.audit.hlo.graph import Module, Unauditable
from fcjax.audit.rules import traffic

_STARTS = tuple(sorted(traffic.COLLECTIVES | traffic.TRANSFERS))


@dataclasses.dataclass(frozen=True)
class Execution:
    """One run of one program on one device.

    Attributes:
      run: the runtime's number of the execution, the same on all its devices.
      device: ordinal of the device.
      instructions: how often each instruction of the program ran.
    """

    run: int
    device: int
    instructions: dict[str, int]


def executions(folder, module_name: str) -> list[Execution]:
    """Executions of a program in the trace that ``jax.profiler.trace(folder)`` wrote.

    Raises:
      Unauditable: there is no trace, or no execution of this program in it.
    """
    files = sorted(pathlib.Path(folder).rglob("*.xplane.pb"))
    found: dict[tuple[int, int], collections.Counter] = {}
    for stats in _stats(files):
        if stats.get("hlo_module") == module_name and "hlo_op" in stats:
            key = int(stats["run_id"]), int(stats["device_ordinal"])
            found.setdefault(key, collections.Counter())[str(stats["hlo_op"])] += 1
    if not found:
        raise Unauditable(f"{folder}: expected executions of {module_name} in a trace, got none")
    return [Execution(*key, dict(ops)) for key, ops in sorted(found.items())]


def _stats(files) -> Iterator[dict]:
    """What the profiler says of each event."""
    with warnings.catch_warnings():
        # jaxlib 0.12 makes its types when they are first used, and Python 3.12 warns of how; where
        # warnings are errors that ends the process.
        warnings.simplefilter("ignore", DeprecationWarning)
        for file in files:
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
                for line in plane.lines:
                    yield from (dict(event.stats) for event in line.events)


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
      found: its executions.
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
