"""What collectives hand to whom: whose arrays reach a device, and what then runs along them."""

import dataclasses

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain import spread as sp
from fcjax.audit.domain.digits import Digit, Part
from fcjax.audit.domain.spread import COORDINATES, ROWS, WEIGHT
from fcjax.audit.domain.values import Kind, Value
from fcjax.audit.hlo.graph import Instruction, Shape, Unauditable


def sources(i: Instruction, devices: int) -> list[tuple[int, ...]]:
    """For each device, those whose arrays it receives, in order."""
    if i.opcode.startswith("collective-permute"):
        out: list[tuple[int, ...]] = [()] * devices
        for pair in i["source_target_pairs"]:
            if not (0 <= pair["source"] < devices and 0 <= pair["target"] < devices):
                raise Unauditable(f"{i.name}: expected pairs of {devices} nodes, got {pair}")
            out[pair["target"]] = (pair["source"],)
        return out
    groups = i.groups or (tuple(range(devices)),)
    if sorted(d for group in groups for d in group) != list(range(devices)):
        raise Unauditable(f"{i.name}: expected each of {devices} nodes in one group, got {groups}")
    of = {d: group for group in groups for d in group}
    if i.opcode == "collective-broadcast":
        return [of[d][:1] for d in range(devices)]
    return [of[d] for d in range(devices)]


def received(i: Instruction, operand: Value, shape: Shape, merged, place: list[int]):
    """What runs along the dimensions of the array that each node receives.

    Args:
      merged: what becomes of a cut, if a node has all that its sources had.
      place: of each node in its group.

    Returns:
      the dimensions, and the cuts of those that are one long (`Spread.single`).
    """
    moved = list(sp.moved(operand.dims, merged))
    kind = i.opcode.removesuffix("-start")
    along = i["dimensions"][0] if len(i["dimensions"]) == 1 else None
    if kind not in ("all-gather", "reduce-scatter", "all-to-all"):
        return tuple(map(_opaque, moved) if kind == "ragged-all-to-all" else moved), set()
    if along is None:  # an all-to-all of one array for each node
        rows = operand.spread.sliced <= {ROWS}
        return tuple(moved), {(tuple(frozenset([p]) for p in place), rows)}
    digits, n = moved[along], shape.dims[along]
    tags = [t for d in digits for t in d[1:] if t is not None]
    rows = all(map(sp.is_row, digits)) if tags else _single_rows(operand)
    field = "weight" if tags and all(d.state is None for d in digits) else "state"
    whole = WEIGHT if field == "weight" else ROWS if rows else COORDINATES
    if dg.OPAQUE in tags:
        tag = dg.OPAQUE
    elif is_copied(i, operand):
        return tuple(moved[:along] + [()] + moved[along + 1 :]), set()
    elif kind == "all-gather":
        left = [t for t in tags if isinstance(t, Part)]
        tag = Part(dataclasses.replace(left[0].axis, size=n), 1) if left else whole
    else:  # what was whole along this dimension is dealt out; what was cut before stays so
        cuts = [cut for cut, _ in sp.cuts_of(digits)]
        keys = [(*(tuple(sorted(c[d])) for c in cuts), p) for d, p in enumerate(place)]
        order = sorted(set(keys))
        cut = tuple(frozenset([order.index(k)]) for k in keys)
        if n == 1 and len(order) > 1:
            moved[along] = ()
            return tuple(moved), {(cut, rows)}
        tag = Part(sp.axis(cut, n, rows), 1) if len(order) > 1 else whole
    moved[along] = dg.join([Digit(n, **{field: tag})])
    return tuple(moved), set()


def is_copied(i: Instruction, operand: Value) -> bool:
    """Does a dimension that is dealt out only count copies, so that all nodes receive the same?"""
    if i.opcode not in ("reduce-scatter", "all-to-all") or len(i["dimensions"]) != 1:
        return False
    digits = operand.dims[i["dimensions"][0]]
    return bool(digits) and all(tag is None for d in digits for tag in d[1:])


def _single_rows(operand: Value) -> bool:
    """Does a dimension that is one long on each node count rows?"""
    single = operand.spread.single
    return operand.kind is Kind.PUBLIC or (bool(single) and all(rows for _, rows in single))


def _opaque(digits) -> tuple[Digit, ...]:
    return tuple(Digit(d.size, *(None if t is None else dg.OPAQUE for t in d[1:])) for d in digits)
