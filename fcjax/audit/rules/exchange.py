"""The choice of the next token: small all-reduces of what each node found in its own logits.

A node may tell the others a number that it found by running through all of its own logits: their
largest, how many reach a threshold, the mass of those, the least id that has the largest value. It
may tell as many as the contract lists, in its order, combined as it says. What was found is then
known to all nodes, as a statistic is; the last of them is the token, which is public.
"""

import dataclasses

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.values import Found, Kind, Sum, Value, is_split, words

Fault = tuple[str, str]  # reason code, words


@dataclasses.dataclass(frozen=True)
class Declared:
    """One exchange of the contract.

    Attributes:
      number: its place among them.
      name: what it finds.
      combine: "add", "max" or "min".
      dtype: of its elements, as HLO writes it.
      size: elements that each node sends.
      reads: what it may be a function of, beside public values: logits and earlier exchanges.
      last: it finds the token, which is public.
    """

    number: int
    name: str
    combine: str
    dtype: str
    size: int
    reads: frozenset[Sum | Found]
    last: bool

    @property
    def found(self) -> Found:
        return Found(self.number, self.name)


class Exchanges:
    """The exchanges of a contract, as the walk meets them."""

    def __init__(self, declared: tuple[Declared, ...] = ()):
        self.left = list(declared)
        self._known = frozenset().union(*(d.reads for d in declared))

    def concerns(self, operand: Value) -> bool:
        """Is it made of what an exchange may look through, or of what one has found?"""
        return operand.kind is Kind.STATE and not operand.reads.isdisjoint(self._known)

    def take(self, operand: Value, combine: str) -> tuple[Declared | None, Fault | None]:
        """The declared exchange that this operand of an all-reduce is, or why it is none."""
        fault = _reduction_fault(operand, combine)
        if fault:
            return None, fault
        shape = operand.shape
        size = dg.size([d for digits in operand.dims for d in digits])
        offered = (combine, shape.dtype, size)
        for d in self.left:
            # The token is chosen when all else is done.
            if (d.combine, d.dtype, d.size) == offered and (not d.last or len(self.left) == 1):
                if not operand.reads <= d.reads:
                    extra = ", ".join(sorted(map(words, operand.reads - d.reads)))
                    return None, ("wrong-source", f"{d.name}: it also depends on {extra}")
                self.left.remove(d)
                return d, None
        return None, self._mismatch(*offered)

    def _mismatch(self, combine: str, dtype: str, size: int) -> Fault:
        said = f"{combine} of {dtype} with {size} elements"
        for d in self.left:
            if (d.combine, d.dtype) == (combine, dtype) and d.size != size:
                return "wrong-size", f"{d.name}: expected {d.size} elements, got {said}"
            if (d.dtype, d.size) == (dtype, size) and d.combine != combine:
                return "wrong-reduction", f"{d.name}: expected {d.combine}, got {said}"
        return "unplanned-collective", f"the contract has no (further) exchange by {said}"


def _reduction_fault(operand: Value, combine: str) -> Fault | None:
    """Why it is not all of the node's logits combined into one number; None if it is."""
    if any(d.state == dg.OPAQUE or is_split(d.state) for d in operand.digits):
        return "hidden-gather", "coordinates of the logits run along it"
    if operand.product is not None or operand.reduced is None:
        return "not-an-exchange", "it is not combined from all of the node's logits"
    if operand.reduced.combine != combine or not combine:
        done, to_do = operand.reduced.combine, combine or "something else"
        return "wrong-reduction", f"the node combines its own by {done}, the nodes by {to_do}"
    gone = dg.collect(operand.reduced.gone, "state")
    parts = [d for d in gone if is_split(d.state)]
    axis = parts[0].state.axis if parts else None
    if axis is None or axis.run or any(d.state == dg.OPAQUE for d in gone):
        return "not-an-exchange", "it is not combined over the split axis"
    if any(d.state.axis != axis for d in parts) or not dg.covers(
        [(d.state.stride, d.size) for d in parts], axis
    ):
        return "not-an-exchange", f"it is not combined over all of {axis}"
    return None
