"""How many bytes an audited program puts on the wire, read from the program itself.

To be held against the plan's closed formula (`boundaries.Collective.sent`): the same elements, but
in the type that the compiler chose for the wire, and only of collectives that were really found.
"""

from collections.abc import Iterable

from fcjax.audit.verdict import Collective
from fcjax.sharded.operators import share

# Of one element of each type on the wire.
BYTES = {
    "f64": 8, "s64": 8, "u64": 8, "c64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2,
    "s16": 2, "u16": 2, "s8": 1, "u8": 1, "pred": 1,
}  # fmt: skip


def sent_elements(collectives: Iterable[Collective], nodes: int) -> float:
    """Elements that one node must send to the others at least in a step, and receive from them."""
    return sum(share(c.kind, c.sent, nodes) for c in collectives)


def sent_bytes(collectives: Iterable[Collective], nodes: int) -> float:
    """The same in bytes, each collective in its type in the program.

    Args:
      collectives: `Verdict.before`, `Verdict.after`, or both.
      nodes: N.
    """
    return sum(share(c.kind, c.sent, nodes) * BYTES[c.dtype] for c in collectives)
