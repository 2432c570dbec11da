"""The transfers of an audited executable as the evidence records them.

The operator table says what each transfer is for, the audit which instruction of the program does
it and what reads its result.
"""

import collections
import math
from collections.abc import Sequence

import jax

from fcjax import audit
from fcjax.audit.contract import Contract, Expected, ExpectedStatistic
from fcjax.audit.domain.values import Statistic
from fcjax.collectives import BYTES, ReduceScatter
from fcjax.sharded import layout
from fcjax.sharded.interval import Boundary, ShardedModel, compatibility_all_gather
from fcjax.sharded.operators import Transfer

_END = {"operator": "(the end of the interval)", "instruction": None}


def records(
    model: ShardedModel,
    rows: Sequence[Boundary],
    verdict: audit.Verdict,
    contract: Contract,
    devices: Sequence[int],
) -> dict[str, list[dict]]:
    """The transfers of each boundary, by its scope.

    Args:
      model: the model that the interval is of.
      rows: its boundaries.
      verdict: of the audit, which it must have passed.
      contract: that it was held against, whose list has the order of the table.
      devices: ids of the nodes' devices, in the order of the nodes.
    """
    by_name = collections.defaultdict(collections.deque)
    for c in verdict.before:
        by_name[c.operator].append(c)
    expected = iter(contract.inside)
    table = [
        (b, planned, by_name[_audit_name(next(expected))].popleft())
        for b in rows
        for planned in b.transfers
    ]
    # The audit calls a statistic by all parts of the sum that is squared; here its place does.
    names = {id(c): planned.name(b.scope) for b, planned, c in table}
    out = {b.scope: [] for b in rows}
    for b, planned, c in table:
        received = None
        if planned.axis is not None:
            split = model.plan.split(c.axis)
            runs = [split.owned(q) for q in range(planned.nodes)]
            received = {"dim": c.axis, "coordinates": [[r.start, r.stop] for r in runs]}
        out[b.scope].append(
            {
                **_transfer(names[id(c)], planned, [c], devices),
                "received": received,
                "read_by": _readers(verdict.before, c, names),
            }
        )
    return out


def gather(
    model: ShardedModel,
    dtype,
    verdict: audit.Verdict,
    batch: int,
    tokens: int,
    devices: Sequence[int],
) -> dict | None:
    """The compatibility all-gather after the interval; None if the whole model is inside."""
    if model.whole:
        return None
    planned = compatibility_all_gather(model.plan, batch, tokens)
    free, item = {"B": batch, "T": tokens}, jax.numpy.dtype(dtype).itemsize
    sizes = {
        name: math.prod(free.get(d) or model.plan.cfg.size(d) for d in layout.VALUES[name].dims)
        for name in layout.names(layout.COMPLETE)
    }
    name = planned.name("")
    return {
        "what": f"{name}, behind the interval and outside the claim",
        "reduction": _transfer(name, planned, verdict.after, devices),
        "restored": {n: restored(devices, size * item) for n, size in sizes.items()},
    }


def restored(devices: Sequence[int], size: int) -> dict:
    """Where a complete value is, and its bytes on each of these devices."""
    return {"measured": True, "devices": list(devices), "bytes": size}


def _transfer(name: str, planned: Transfer, found: Sequence, devices) -> dict:
    width = BYTES[found[0].dtype]

    def sizes(shape, elements):
        return {"shape": list(shape), "elements": elements, "bytes": elements * width}

    return {
        "operator": name,
        "kind": found[0].kind,
        "instruction": found[0].instruction,
        "dtype": found[0].dtype,
        "participants": list(devices),
        "operand": sizes(planned.operand, sum(c.sent for c in found)),
        "result": sizes(planned.result, sum(c.received for c in found)),
    }


def _readers(flow: Sequence[audit.Collective], found: audit.Collective, names) -> list[dict]:
    """What reads the result next, as the audit followed it: up to the first projection."""
    after = next(n for n, c in enumerate(flow) if c is found) + 1
    readers = []
    for c in flow[after:]:
        # An exchange's reads carry its number: "largest logit (0)".
        parts = {p for read in c.reads for p in (read, *read.split(" + "))}
        parts |= {p.rpartition(" (")[0] for p in parts}
        if found.operator in parts:
            readers.append({"operator": names[id(c)], "instruction": c.instruction})
            if c.kind == ReduceScatter.opcode:
                break
    return readers or [_END]


def _audit_name(line: Expected) -> str:
    """How the audit's verdict calls a collective of the contract."""
    return str(Statistic(line.of)) if isinstance(line, ExpectedStatistic) else line.operator
