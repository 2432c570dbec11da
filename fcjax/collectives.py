"""The kinds of collective: what each node receives, and how much it has to send for it.

The one place for both. `sent` is what a node must send to the others at least, and receive from
them: its share in a ring. How a transport really does it is another matter (docs/AUDIT.md).
"""


class CollectiveKind:
    """One kind of collective.

    Attributes:
      opcode: its name in HLO, without "-start".
    """

    opcode: str

    @staticmethod
    def result(operand: tuple[int, ...], axis: int | None, nodes: int) -> tuple[int, ...]:
        """Shape that each node receives, if each puts in one of shape `operand`.

        Args:
          operand: of one node.
          axis: the one that is dealt out over the nodes, if there is one.
          nodes: N.
        """
        raise NotImplementedError

    @staticmethod
    def sent(size: float, nodes: int) -> float:
        """Elements that a node sends at least for an operand of `size` elements."""
        raise NotImplementedError


class ReduceScatter(CollectiveKind):
    """Each node receives its own run of the sum."""

    opcode = "reduce-scatter"

    @staticmethod
    def result(operand, axis, nodes):
        return tuple(n // nodes if i == axis else n for i, n in enumerate(operand))

    @staticmethod
    def sent(size, nodes):
        return size * (nodes - 1) / nodes


class AllReduce(CollectiveKind):
    """Each node receives the whole sum (or maximum, or minimum)."""

    opcode = "all-reduce"

    @staticmethod
    def result(operand, axis, nodes):
        return operand

    @staticmethod
    def sent(size, nodes):
        return 2 * size * (nodes - 1) / nodes  # scattered, then gathered


class AllGather(CollectiveKind):
    """Each node receives what every node put in."""

    opcode = "all-gather"

    @staticmethod
    def result(operand, axis, nodes):
        return (nodes, *operand)

    @staticmethod
    def sent(size, nodes):
        return size * (nodes - 1)


KINDS = {kind.opcode: kind for kind in (ReduceScatter, AllReduce, AllGather)}

# Of one element of each type, as HLO names it, on the wire.
BYTES = {
    "c128": 16,
    **dict.fromkeys(("f64", "s64", "u64", "c64"), 8),
    **dict.fromkeys(("f32", "s32", "u32"), 4),
    **dict.fromkeys(("bf16", "f16", "s16", "u16"), 2),
    **dict.fromkeys(("s8", "u8", "pred"), 1),
}


def sent_elements(collectives, nodes: int) -> float:
    """Elements that one node sends for collectives that each have a `kind` (its opcode) and `sent`
    (elements of the operand), as the audit's verdict lists them."""
    return sum(KINDS[c.kind].sent(c.sent, nodes) for c in collectives)


def sent_bytes(collectives, nodes: int) -> float:
    """The same in bytes, each collective in its `dtype`."""
    return sum(KINDS[c.kind].sent(c.sent, nodes) * BYTES[c.dtype] for c in collectives)
