"""The ownership plan: which node owns which coordinates of which state tensor.

Everything that depends on the split is derived from a `Plan`: partition specs, padded sizes, the
blocks that are loaded, the audit's contract, and the rows of the ledger.

A split dimension is dealt out in equal runs of ceil(size / N) coordinates, in order of the nodes.
If N does not divide the size, the last runs reach into zero padding, which is never state. KV
groups are dealt whole, so with fewer groups than nodes some nodes own none of q, k, v and their
cache.
"""

import dataclasses

import jax

from fcjax.mesh import AXIS
from fcjax.model.config import ModelConfig
from fcjax.model.params import LAYER_PARAMS, MODEL_PARAMS

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

# The dimension over which a weight is cut into node blocks, inside the interval: the coordinates of
# the state shard that the node multiplies (a bias: of the shard that it is added to).
INTERVAL_CUT = {
    "input_norm": "D", "qkv": "D", "qkv_bias": "K", "out": "K",
    "post_norm": "D", "gate_up": "D", "down": "F",
    "embed": "D", "norm": "D", "head": "D",
}  # fmt: skip
# The same for ordinary tensor parallelism, where every node holds the complete residual. The tables
# of the embedding and the head are cut by columns either way, so that a tied one exists once.
TENSOR_PARALLEL_CUT = {
    "input_norm": None, "qkv": "K", "qkv_bias": "K", "out": "K",
    "post_norm": None, "gate_up": "F", "down": "F", "norm": None,
}  # fmt: skip


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
        (dim,) = set(STATE[name]) & set(SPLIT_DIMS)
        return self.split(dim)

    def state_spec(self, name: str) -> jax.P:
        """Partition spec of a state tensor."""
        return _spec(STATE[name], self.state_split(name).dim)

    def state_shape(self, name: str, **free: int) -> tuple[int, ...]:
        """Padded shape of a state tensor; `free` gives B and T or S."""
        return tuple(free[d] if d in free else self._padded(d) for d in STATE[name])

    def weight_spec(self, path: str, cuts: dict[str, str | None]) -> jax.P:
        """Partition spec of a parameter under `INTERVAL_CUT` or `TENSOR_PARALLEL_CUT`."""
        return _spec(_weight_dims(path), cuts[_leaf(path)])

    def weight_shape(self, path: str, cuts: dict[str, str | None]) -> tuple[int, ...]:
        """Padded shape of a parameter.

        Inside the interval every split dimension is padded, as each is a shard of state on one side
        of the weight; under tensor parallelism only the one along which the weight is cut.
        """
        dims, cut = _weight_dims(path), cuts[_leaf(path)]
        padded = SPLIT_DIMS if cuts is INTERVAL_CUT else (cut,)
        return tuple(self._padded(d) if d in padded else self.cfg.size(d) for d in dims)

    def _padded(self, dim: str) -> int:
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


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _weight_dims(path: str) -> tuple[str, ...]:
    return (LAYER_PARAMS | MODEL_PARAMS)[_leaf(path)]


def _spec(dims: tuple[str, ...], cut: str | None) -> jax.P:
    return jax.P(*(AXIS if d == cut else None for d in dims))
