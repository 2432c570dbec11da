"""Shapes, types and shardings of what the programs take and give: values, parameters, caches."""

import dataclasses

import jax
import jax.numpy as jnp

from fcjax.model.config import ModelConfig
from fcjax.model.params import param_dims
from fcjax.sharded.ownership import STATE, Plan, partition_spec, split_dim

PUBLIC, SHARD, COMPLETE = "public", "shard", "complete"


@dataclasses.dataclass(frozen=True)
class ValueLayout:
    """A value that passes between programs.

    Attributes:
      kind: `PUBLIC`, which every node may know; `SHARD`, a node's own coordinates of state; or
        `COMPLETE`, state as the compatibility all-gather gives it to every node.
      dims: its dimension letters; a digit stands for itself.
      state: the state tensors in it, side by side along "C" where there are several.
      dtype: its type; None is that of the computation.
    """

    kind: str
    dims: tuple[str, ...]
    state: tuple[str, ...] = ()
    dtype: jnp.dtype | None = None

    @property
    def split(self) -> str | None:
        """The dimension that is split over the nodes, if there is one."""
        return None if self.kind == COMPLETE else split_dim(self.dims)

    @property
    def axis(self) -> int | None:
        """Which axis that is."""
        return None if self.split is None else self.dims.index(self.split)

    def without_padding(self, cfg: ModelConfig, whole):
        """The true coordinates of the whole value, shards side by side."""
        end = lambda d: cfg.size(d) if d == self.split else None  # noqa: E731
        return whole[tuple(slice(end(d)) for d in self.dims)]

    def parts(self, cfg: ModelConfig, whole) -> dict:
        """The state tensors in it, by name; fused ones keep their "C" axis."""
        if len(self.state) == 1:
            return {self.state[0]: whole}
        fused = self.dims.index("C")
        return {s: whole[(slice(None),) * fused + (cfg.slots[s],)] for s in self.state}


_QKV = ("B", "T", "K", "C", "H")  # q, k and v of a KV group side by side
VALUES = {
    "tokens": ValueLayout(PUBLIC, ("B", "T"), dtype=jnp.int32),
    "next_tokens": ValueLayout(PUBLIC, ("B", "1"), dtype=jnp.int32),  # public, once they are chosen
    "pos": ValueLayout(PUBLIC, ("B",), dtype=jnp.int32),  # of each row's first token
    "seed": ValueLayout(PUBLIC, (), dtype=jnp.uint32),  # of the draws
    # Which words a row has: public as the tokens are, but each node needs its own words only.
    "seen": ValueLayout(PUBLIC, ("B", "V"), dtype=jnp.bool_),
    "residual": ValueLayout(SHARD, STATE["residual"], ("residual",)),
    "qkv": ValueLayout(SHARD, _QKV, ("q", "k", "v")),
    "logits": ValueLayout(SHARD, STATE["logits"], ("logits",)),
    "complete_residual": ValueLayout(COMPLETE, STATE["residual"], ("residual",)),
    "complete_qkv": ValueLayout(COMPLETE, _QKV, ("q", "k", "v")),
}
CACHE = ("cache_k", "cache_v")


def names(kind: str) -> tuple[str, ...]:
    """The values of one kind."""
    return tuple(name for name, value in VALUES.items() if value.kind == kind)


class Layout:
    """A model laid out over the devices that play its nodes.

    Attributes:
      model: a `ShardedModel`, or anything else with a plan, and cuts of its parameters.
      mesh: the nodes (`fcjax.mesh.make_mesh`), or as many compile-only devices.
      dtype: of parameters, activations and caches.
    """

    def __init__(self, model, mesh: jax.sharding.Mesh, dtype=jnp.float32):
        self.model, self.mesh, self.dtype = model, mesh, jnp.dtype(dtype)

    @property
    def plan(self) -> Plan:
        return self.model.plan

    def value(self, name: str, batch: int, tokens: int) -> jax.ShapeDtypeStruct:
        """Padded shape, type and sharding of one of `VALUES`.

        Raises:
          ValueError: there is no such value.
        """
        if name not in VALUES:
            raise ValueError(f"value: expected one of {', '.join(VALUES)}, got {name!r}")
        value, free = VALUES[name], {"B": batch, "T": tokens}
        size = self.plan.cfg.size if value.kind == COMPLETE else self.plan.padded
        shape = tuple(free.get(d) or size(d) for d in value.dims)
        return self._abstract(shape, partition_spec(value.dims, value.split), value.dtype)

    def param(self, path: str) -> jax.ShapeDtypeStruct:
        """Padded shape, type and sharding of a parameter."""
        cuts = self.model.cuts(path)
        return self._abstract(self.plan.weight_shape(path, cuts), self.plan.weight_spec(path, cuts))

    def params(self) -> dict[str, jax.ShapeDtypeStruct]:
        """`param` of every parameter of the model."""
        return {path: self.param(path) for path in param_dims(self.plan.cfg)}

    def cache(self, batch: int, length: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The (k, v) cache of one layer, each node holding its own KV groups."""
        plan = self.plan
        return tuple(
            self._abstract(plan.state_shape(name, B=batch, S=length), plan.state_spec(name))
            for name in CACHE
        )

    def init_cache(self, batch: int, length: int) -> list[tuple[jax.Array, ...]]:
        """An empty cache for every layer, made where its owner is."""
        return [
            tuple(jnp.zeros(t.shape, t.dtype, device=t.sharding) for t in self.cache(batch, length))
            for _ in range(self.plan.cfg.L)
        ]

    def _abstract(self, shape, spec, dtype=None) -> jax.ShapeDtypeStruct:
        sharding = jax.NamedSharding(self.mesh, spec)
        return jax.ShapeDtypeStruct(shape, dtype or self.dtype, sharding=sharding)
