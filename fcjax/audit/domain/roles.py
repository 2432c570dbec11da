"""What the inputs and outputs of a program are: the caller's side of an audit."""

import dataclasses
from collections.abc import Iterable

import jax

from fcjax.audit.domain.digits import Axis, Digit, Dims, Part, join


@dataclasses.dataclass(frozen=True)
class Tensor:
    """The axes of one value, as one node holds it.

    Attributes:
      name: how reports call it, for example "residual" or "layers.0.qkv".
      axes: one axis a dimension.
      dtype: as HLO names it, for example "f32"; "" for a float of at most 32 bits, and of a public
        value for any type.
    """

    name: str
    axes: tuple[Axis, ...]
    dtype: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.size for a in self.axes)

    @property
    def split(self) -> Axis | None:
        """The axis that is split over the nodes, if there is one."""
        axes = [a for a in self.axes if a.split]
        return axes[0] if axes else None

    def __post_init__(self):
        names = [a.name for a in self.axes]
        # Of a square weight both axes have one name: rows that are split, columns that are not.
        square = type(self) is Weight
        if len({(a.name, square and a.split) for a in self.axes}) != len(names):
            raise ValueError(f"{self.name}: expected axes of different names, got {names}")
        if sum(a.split for a in self.axes) > 1:
            raise ValueError(f"{self.name}: expected at most one split axis, got {self.axes}")

    def digits(self, field: str) -> Dims:
        """Its dimensions, tagged as state or as weight."""
        return tuple(join([Digit(a.size, **{field: Part(a, 1)})]) for a in self.axes)


class State(Tensor):
    """A shard of state: the node's own coordinates and no others."""


class Weight(Tensor):
    """The node's declared block of a weight; a contraction with it may leave the node."""


@dataclasses.dataclass(frozen=True)
class Table(Weight):
    """A weight whose rows are state: an embedding, of which the node holds its own columns.

    A row that is looked up whole, by a public value, over all of the table's other axis, is the
    node's shard of the state `rows`. In a contraction the table is a weight like any other.
    """

    rows: str = "residual"


class Public(Tensor):
    """A value that says nothing about the state: token ids, positions, masks."""


class Complete(Tensor):
    """A result that holds the complete state: only after the compatibility all-gather."""


Role = State | Weight | Public | Complete


@dataclasses.dataclass(frozen=True)
class Signature:
    """Roles of a program's flat parameters and results, in order.

    Attributes:
      nodes: how many nodes own the state between them, N.
      parameters: one role for each entry parameter.
      results: one role for each array of the result.
      groups: where several groups of N nodes run it, each on rows of its own (a data x node mesh):
        the devices of each group, in the order of its nodes; empty for one group of all devices.
    """

    nodes: int
    parameters: tuple[Role, ...]
    results: tuple[Role, ...]
    groups: tuple[tuple[int, ...], ...] = ()

    @property
    def all_groups(self) -> tuple[tuple[int, ...], ...]:
        """`groups`, or the one group of all."""
        return self.groups or (tuple(range(self.nodes)),)

    @property
    def devices(self) -> int:
        """How many run the program."""
        return len(self.all_groups) * self.nodes

    @property
    def by_name(self) -> dict[str, Role]:
        """The parameters' roles by their names."""
        return {role.name: role for role in self.parameters}


def tensor(
    kind: type[Tensor], name: str, dims: Iterable[str], shape, split=None, dtype=""
) -> Tensor:
    """A role from letters and the node's own shape.

    Args:
      split: the letter that is split over the nodes, if there is one; of a square weight, which has
        the same letter twice, its place.
    """
    axes = (Axis(d, n, split in (d, p)) for p, (d, n) in enumerate(zip(dims, shape, strict=True)))
    return kind(name, tuple(axes), dtype)


def signature(nodes: int, parameters, results, groups=()) -> Signature:
    """A signature from two trees of roles, flattened as JAX flattens arguments and results.

    Raises:
      ValueError: the groups (see `Signature`) are not of N devices each, and each device once.
    """
    groups = tuple(map(tuple, groups))
    devices = sorted(d for group in groups for d in group)
    if {len(g) for g in groups} - {nodes} or devices != list(range(len(devices))):
        raise ValueError(f"groups: expected {nodes} devices in each, every one once, got {groups}")
    flat = (
        tuple(jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Tensor)))
        for tree in (parameters, results)
    )
    return Signature(nodes, *flat, groups)
