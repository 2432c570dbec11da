"""The contract: what one program may do, as the exact list of its collectives.

Every expected collective says which weight it contracts, over which axis the sum is scattered, how
many elements cross, and which values it reads, so that the compiled program is compared with the
operators of a plan and not only with a count. Each kind is a class of its own; the same kinds as
they are found in a program are the classes of `crossing`.
"""

import dataclasses
from typing import ClassVar

from fcjax.audit.domain.roles import Complete, Signature
from fcjax.audit.domain.values import Read, Sum
from fcjax.audit.identity import Definition
from fcjax.audit.rules.exchange import Declared
from fcjax.collectives import AllGather, AllReduce, CollectiveKind, ReduceScatter


@dataclasses.dataclass(frozen=True)
class Expected:
    """One collective of the contract.

    Attributes:
      kind: its kind of collective.
      operator: what the contract calls it, for example the weight that is contracted.
      sent: elements of the operand on each node.
      received: elements of the result on each node.
      reads: the boundary values and statistics that the operand is made of, and no others.
      axis: name of the axis that is scattered; "" where all receive the same.
      exact: whether the operand must depend on everything in `reads`.
    """

    kind: ClassVar[type[CollectiveKind]]
    operator: str
    sent: int
    received: int
    reads: frozenset[Read]
    axis: str = ""
    exact: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class ExpectedContraction(Expected):
    """The reduce-scatter of state contracted with the weight `operator`."""

    kind = ReduceScatter


@dataclasses.dataclass(frozen=True)
class ExpectedStatistic(Expected):
    """The all-reduce of a norm's sum of squares.

    Attributes:
      of: the norm's input.
    """

    kind = AllReduce
    of: Sum = ()


@dataclasses.dataclass(frozen=True)
class ExpectedExchange(Expected):
    """The all-reduce by which one number of the choice of a token is found.

    It was held against its list when it was taken, and may also depend on less.

    Attributes:
      exchange: what was declared.
    """

    kind = AllReduce
    exact = False
    exchange: Declared | None = None


@dataclasses.dataclass(frozen=True)
class ExpectedGather(Expected):
    """The one all-gather after the interval."""

    kind = AllGather


@dataclasses.dataclass(frozen=True)
class Contract:
    """What one program may do.

    Attributes:
      signature: roles of its parameters and results.
      inside: collectives of the interval in order; None allows every clean one (`certify`).
      after: the compatibility all-gather, if there is one.
      sums: for each result that is a boundary value, its parts; None where it is another function
        of the shards.
      definition: what every value that is sent, returned or kept is to be; None where the caller
        does not know it (`certify`).
    """

    signature: Signature
    inside: tuple[Expected, ...] | None
    after: ExpectedGather | None
    sums: tuple[Sum | None, ...]
    definition: Definition | None = None

    @property
    def exchanges(self) -> tuple[Declared, ...]:
        return tuple(e.exchange for e in self.inside or () if isinstance(e, ExpectedExchange))


def open_contract(roles: Signature) -> Contract:
    """No list of collectives: every one that moves state as the claim allows is accepted."""
    complete = any(isinstance(r, Complete) for r in roles.results)
    after = ExpectedGather("all-gather", 0, 0, frozenset()) if complete else None
    return Contract(roles, None, after, (None,) * len(roles.results))
