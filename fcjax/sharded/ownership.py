"""The ownership plan: which node owns which coordinates of which state tensor.

Everything that depends on the split is derived from a `Plan`: partition specs, padded sizes, the
blocks that are loaded, the audit's contract, and the rows of the ledger.

A split dimension is dealt out in equal runs of ceil(size / N) coordinates, in order of the nodes.
If N does not divide the size, the last runs reach into zero padding, which is never state. KV
groups are dealt whole, so with fewer groups than nodes some nodes own none of q, k, v and their
cache.
"""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import jax

from fcjax.mesh import AXIS
from fcjax.model.config import ModelConfig
from fcjax.model.params import PARAMS, leaf

# Dimensions of every state tensor. Each has exactly one dimension that is split over the nodes.
STATE = {
    "residual": ("B", "T", "D"),
    "normed": ("B", "T", "D"),
    "q": ("B", "T", "K", "G", "H"),
    "k": ("B", "T", "K", "H"),
    "v": ("B", "T", "K", "H"),
    "cache_k": ("B", "K", "S", "H"),
    "cache_v": ("B", "K", "S", "H"),
    "attention": ("B", "T", "K", "G", "H"),
    "gate": ("B", "T", "F"),
    "up": ("B", "T", "F"),
    "activation": ("B", "T", "F"),
    "logits": ("B", "V"),  # of the last token
}
SPLIT_DIMS = ("D", "K", "F", "V")


class Cut(NamedTuple):
    """How a parameter is cut into node blocks.

    Attributes:
      dim: the dimension along which it is; None for one that every node holds whole.
      padded: the dimensions that are padded to whole blocks.
    """

    dim: str | None
    padded: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Split:
    """One dimension dealt out over N nodes.

    Attributes:
      dim: its letter.
      size: true coordinates.
      nodes: N.
    """

    dim: str
    size: int
    nodes: int

    @property
    def block(self) -> int:
        """Slots of each node, padding included."""
        return -(-self.size // self.nodes)

    @property
    def padded(self) -> int:
        """Slots of all nodes: the size of the split dimension in every program."""
        return self.block * self.nodes

    def owned(self, node: int) -> range:
        """The true coordinates that a node owns; empty where its run is all padding."""
        start = min(node * self.block, self.size)
        return range(start, min(start + self.block, self.size))


@dataclasses.dataclass(frozen=True)
class Plan:
    """Who owns what, for one model over N nodes.

    Attributes:
      cfg: the model's sizes.
      nodes: N, at least 2.

    Raises:
      ValueError: N < 2, one node would own all of a state tensor, or a node would own no coordinate
        of the residual, the MLP or the vocabulary.
    """

    cfg: ModelConfig
    nodes: int

    def __post_init__(self):
        if self.nodes < 2:
            raise ValueError(
                f"nodes: expected at least 2, got {self.nodes}: one node would own the whole state"
            )
        for dim in SPLIT_DIMS:
            split = self.split(dim)
            what = f"{_NAMES[dim]} {split.size} over {self.nodes} nodes"
            if split.block >= split.size:
                raise ValueError(f"nodes: {what}: expected a proper split, got all on node 0")
            if dim != "K" and not split.owned(self.nodes - 1):
                raise ValueError(
                    f"nodes: {what}: expected coordinates for each node, got none on node"
                    f" {self.nodes - 1} with {split.block} on each node before it"
                )

    def split(self, dim: str) -> Split:
        """How one of `SPLIT_DIMS` is dealt out."""
        return Split(dim, self.cfg.size(dim), self.nodes)

    def state_split(self, name: str) -> Split:
        """The split dimension of a state tensor."""
        return self.split(split_dim(STATE[name]))

    def state_spec(self, name: str) -> jax.P:
        """Partition spec of a state tensor."""
        return partition_spec(STATE[name], self.state_split(name).dim)

    def state_shape(self, name: str, **free: int) -> tuple[int, ...]:
        """Padded shape of a state tensor; `free` gives B and T or S."""
        return tuple(free[d] if d in free else self.padded(d) for d in STATE[name])

    def weight_spec(self, path: str, cuts: dict[str, Cut]) -> jax.P:
        """Partition spec of a parameter; `cuts` is one of the tables of `sharded.operators`."""
        return partition_spec(PARAMS[leaf(path)].dims, cuts[leaf(path)].dim)

    def weight_shape(self, path: str, cuts: dict[str, Cut]) -> tuple[int, ...]:
        """Padded shape of a parameter; `cuts` as in `weight_spec`."""
        padded = cuts[leaf(path)].padded
        dims = PARAMS[leaf(path)].dims
        return tuple(self.padded(d) if d in padded else self.cfg.size(d) for d in dims)

    def padded(self, dim: str) -> int:
        """Size of a dimension in the programs: of a split one, with its padding."""
        return self.split(dim).padded if dim in SPLIT_DIMS else self.cfg.size(dim)

    def describe(self) -> dict:
        """The plan as plain data, for the evidence: per split dimension, who owns what."""
        return {
            "nodes": self.nodes,
            "splits": {
                dim: {
                    "meaning": _NAMES[dim],
                    "size": self.split(dim).size,
                    "padded": self.split(dim).padded,
                    "owned": [
                        [r.start, r.stop] for r in map(self.split(dim).owned, range(self.nodes))
                    ],
                }
                for dim in SPLIT_DIMS
            },
            "state": {
                name: {"dims": list(dims), "split": self.state_split(name).dim}
                for name, dims in STATE.items()
            },
        }


_NAMES = {
    "D": "hidden_size",
    "K": "num_key_value_heads",
    "F": "intermediate_size",
    "V": "vocab_size",
}


def split_dim(dims: Iterable[str]) -> str | None:
    """The one dimension among these that is split over the nodes; None if there is none."""
    split = [d for d in dims if d in SPLIT_DIMS]
    if len(split) > 1:
        raise ValueError(f"dimensions: expected at most one split one, got {split}")
    return split[0] if split else None


def partition_spec(dims: tuple[str, ...], cut: str | None) -> jax.P:
    """The partition spec of an array that is split along one of its dimensions, or along none."""
    return jax.P(*(AXIS if d == cut else None for d in dims))
