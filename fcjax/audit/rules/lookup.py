"""Rows of a table that are looked up by public values: how state enters the whole model.

XLA writes an embedding as `gather`, or for one row as `dynamic-slice`. A row counts as the state
that the table declares if it is a whole row, picked by public values along all of the other axis.
What is made of a table in any other way is state in an unknown order (`values.mixed`).
"""

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import Digit, Part
from fcjax.audit.domain.values import Kind, Value, is_split
from fcjax.audit.hlo.graph import Instruction


def dynamic_slice(i: Instruction, table: Value) -> Value | None:
    """One row at public starts; None if it is not that."""
    sizes = i.shape.dims
    cut = [d for d, (n, m) in enumerate(zip(table.shape.dims, sizes, strict=True)) if n != m]
    if len(cut) != 1 or sizes[cut[0]] != 1 or not _is_table(table, cut[0]):
        return None
    return _rows(i, table, [() if d in cut else _columns(c) for d, c in enumerate(table.dims)])


def gather(i: Instruction, table: Value, index: Value) -> Value | None:
    """Rows at public indices, in the order of the indices; None if it is not that."""
    numbers, sizes = i["gather_dimension_numbers"], i["gather_slice_sizes"]
    along = numbers["start_index_map"]
    if index.kind is not Kind.PUBLIC or len(along) != 1 or not _is_table(table, along[0]):
        return None
    if numbers["operand_batching_dims"] or numbers["start_indices_batching_dims"]:
        return None
    if sizes != tuple(1 if d in along else n for d, n in enumerate(table.shape.dims)):
        return None
    collapsed, offsets = numbers["collapsed_slice_dims"], numbers["offset_dims"]
    kept = [() if d in along else _columns(c) for d, c in enumerate(table.dims)]
    columns = [c for d, c in enumerate(kept) if d not in collapsed]
    rows = [c for d, c in enumerate(index.dims) if d != numbers["index_vector_dim"]]
    dims = dict(zip(offsets, columns, strict=True))
    others = [d for d in range(len(i.shape.dims)) if d not in offsets]
    dims |= {d: dg.join(map(_row, c)) for d, c in zip(others, rows, strict=True)}
    return _rows(i, table, [dims[d] for d in range(len(i.shape.dims))])


def _is_table(table: Value, along: int) -> bool:
    """Does one whole axis, not split, run along this dimension, and whole ones elsewhere?"""
    if table.kind is not Kind.WEIGHT or table.scaled or not table.dims[along]:
        return False
    for d, digits in enumerate(table.dims):
        tags = [t for digit in digits for t in digit[1:] if t is not None]
        if len(tags) != len(digits) or len(digits) > 1:
            return False
        whole = all(isinstance(t, Part) and (t.axis.size, t.stride) == (dg.size(digits), 1)
                    and not t.axis.inner and not t.axis.parts for t in tags)
        if not whole or (d == along and any(map(is_split, tags))):
            return False
    return True


def _columns(digits) -> tuple[Digit, ...]:
    return tuple(Digit(d.size, state=d.weight) for d in digits)


def _row(digit: Digit) -> Digit:
    """Which rows and tokens the indices are for; of others the order is not known."""
    known = isinstance(digit.state, Part) and not is_split(digit.state)
    return Digit(digit.size, digit.state if known else dg.OPAQUE)


def _rows(i: Instruction, table: Value, dims) -> Value:
    total = (table.rows,)
    return Value(Kind.STATE, i.shape, tuple(dims), sum=total, reads=frozenset([total]))
