"""The ledger: which node owns which coordinates of which state tensor after every operator.

At the interval's entry and exit, in the caches and in the logits there are real arrays: each
buffer is asked on which device it lies, which index it has and how large it is. Between two
operators inside one program there is nothing to ask; owners and sizes there follow from the plan
and from the audited program, and the rows say so (`measured`).
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import numpy as np

from fcjax import audit
from fcjax.record import transfers
from fcjax.sharded import layout, operators, programs
from fcjax.sharded.contract import interval_contract
from fcjax.sharded.interval import ShardedModel, boundaries
from fcjax.sharded.ownership import STATE, Split, split_dim


@dataclasses.dataclass(frozen=True)
class Shard:
    """One buffer.

    Attributes:
      node: number of the node whose device it lies on; -1 for a device that is no node.
      device: JAX's id of that device.
      start, stop: its slots along the split dimension, padding included.
      bytes: of the buffer.
      whole_rest: whether it spans every other dimension.
      padding_zero: whether the slots beyond the true size are all zero; None if nobody looked.
    """

    node: int
    device: int
    start: int
    stop: int
    bytes: int
    whole_rest: bool = True
    padding_zero: bool | None = None


Found = dict[tuple[str, str], tuple[Shard, ...]]  # by boundary and state tensor


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a state tensor can be measured.

    Attributes:
      value: name of the value (`layout.VALUES`), or "cache" for the cache of `layer`.
      axis: the split one.
      part, parts: the tensor is that many of so many equal parts of the array.
      layer: of a cache.
    """

    value: str
    axis: int
    part: int = 1
    parts: int = 1
    layer: int | None = None


class Ledger:
    """The rows of one audited executable of the interval.

    Attributes:
      places: the state tensors that can be measured, by boundary and name.
      outside: the record of the compatibility all-gather as planned, or None.
      public: the reductions by which the next token is chosen, if that is inside the interval.
    """

    def __init__(
        self,
        model: ShardedModel,
        dtype,
        verdict: audit.Verdict,
        sizes: tuple[int, int, int],
        devices: Sequence[int],
    ):
        """
        Args:
          model: the model that the interval is of.
          dtype: of activations and caches.
          verdict: of the audit, which it must have passed.
          sizes: B, T and S that it was compiled for.
          devices: ids of the nodes' devices, in the order of the nodes.
        """
        batch, tokens, slots = sizes
        self.model, self.devices = model, tuple(devices)
        self._free = {"B": batch, "T": tokens, "S": slots}
        self._itemsize = jax.numpy.dtype(dtype).itemsize
        self.boundaries = boundaries(model, batch, tokens)
        contract = interval_contract(model, batch, tokens, slots)
        self._reductions = transfers.records(
            model, self.boundaries, verdict, contract, self.devices
        )
        self.places = self._places(programs.interval(model, tokens).results)
        self.public = self._reductions.pop(operators.CHOOSE.name, None)
        self.outside = transfers.gather(model, dtype, verdict, batch, tokens, self.devices)

    def _places(self, results: Sequence[str]) -> dict[tuple[str, str], Place]:
        """Of the entry, the caches, and the state that the program's results leave with."""
        places = {}
        last = {state: b.scope for b in self.boundaries for state in b.state}
        entry = self.boundaries[0]
        if entry.operator is operators.ENTRY:
            places |= self._parts("residual", {"residual": entry.scope})
        for b in self.boundaries:
            for state in b.state:
                if state in layout.CACHE:
                    axis = STATE[state].index(split_dim(STATE[state]))
                    places[b.scope, state] = Place("cache", axis, layer=b.layer)
        for name in results:
            if layout.VALUES[name].kind == layout.SHARD:
                places |= self._parts(name, last)
        return places

    def _parts(self, name: str, scopes: dict[str, str]) -> dict[tuple[str, str], Place]:
        """The places of the state tensors in a value, each after the operator that left it."""
        value, slots = layout.VALUES[name], self.model.plan.cfg.slots
        if len(value.state) == 1:
            return {(scopes[s], s): Place(name, value.axis) for s in value.state}
        widths = {s: slots[s].stop - slots[s].start for s in value.state}
        parts = sum(widths.values())
        return {(scopes[s], s): Place(name, value.axis, n, parts) for s, n in widths.items()}

    def planned(self, state: str, looked: bool = False) -> tuple[Shard, ...]:
        """The shards of a state tensor as the plan has them.

        Args:
          state: its name.
          looked: whether padding, which the plan has as zeros, counts as looked at.
        """
        split = self.model.plan.state_split(state)
        free = {d: n for d, n in self._free.items() if d in STATE[state]}
        size = math.prod(self.model.plan.state_shape(state, **free)) // self.model.plan.nodes
        return tuple(
            Shard(q, d, q * split.block, (q + 1) * split.block, size * self._itemsize,
                  padding_zero=True if looked else None)
            for q, d in enumerate(self.devices)
        )

    def as_planned(self) -> Found:
        """What `rows` takes if every measured array lies as planned."""
        return {key: self.planned(key[1], p.value != "cache") for key, p in self.places.items()}

    def measure(self, take, at_entry: bool) -> Found:
        """The shards of what can be measured at the interval's entry, or at its exit.

        Args:
          take: called with a place and the state's name, returns the array.
          at_entry: which of the two.
        """
        held, seen = {}, {}
        for key, place in self.places.items():
            if (key[0] == "entry") != at_entry:
                continue
            array = take(place, key[1])
            if id(array) not in seen:
                split = self.model.plan.state_split(key[1])
                look = place.value != "cache"
                seen[id(array)] = measure(array, place.axis, split, self.devices, look)
            held[key] = tuple(
                dataclasses.replace(s, bytes=s.bytes * place.part // place.parts)
                if place.parts > 1
                else s
                for s in seen[id(array)]
            )
        return held

    def rows(self, found: Found) -> list[dict]:
        """One row a boundary; `found` has the shards of every measured tensor."""
        return [
            {
                "boundary": b.scope,
                "reductions": self._reductions[b.scope],
                "owners": {s: self._owners(s, found.get((b.scope, s))) for s in b.state},
            }
            for b in self.boundaries
            if b.scope in self._reductions
        ]

    def _owners(self, state: str, shards: tuple[Shard, ...] | None) -> dict:
        measured = shards is not None
        shards = shards if measured else self.planned(state)
        split = self.model.plan.state_split(state)
        disjoint, covering = coverage(split, shards)
        bare = [dataclasses.replace(s, padding_zero=None) for s in shards]
        return {
            "dim": split.dim,
            "size": split.size,
            "measured": measured,
            "disjoint": disjoint,
            "covering": covering,
            "as_planned": tuple(bare) == self.planned(state),
            "shards": [_shard_json(split, s) for s in shards],
        }


def measure(array, axis: int, split: Split, devices, look=True) -> tuple[Shard, ...]:
    """The shards of an array as its buffers say; sorted by node.

    Args:
      array: on the nodes, padded along `axis`.
      axis: the split dimension.
      split: its plan.
      devices: ids of the nodes' devices in order.
      look: whether to look into the padding.
    """
    shards = []
    for shard in array.addressable_shards:
        slots = range(*shard.index[axis].indices(array.shape[axis]))
        rest = all(
            range(*s.indices(n)) == range(n)
            for i, (s, n) in enumerate(zip(shard.index, array.shape, strict=True))
            if i != axis
        )
        node = devices.index(shard.device.id) if shard.device.id in devices else -1
        zero = _padding_zero(shard.data, axis, slots, split) if look else None
        shards.append(
            Shard(node, shard.device.id, slots.start, slots.stop, shard.data.nbytes, rest, zero)
        )
    return tuple(sorted(shards, key=lambda s: (s.node, s.start)))


def coverage(split: Split, shards: Sequence[Shard]) -> tuple[bool, bool]:
    """Whether the shards hold no coordinate twice, and whether they hold every one."""
    times = np.zeros(split.size, np.int32)
    for s in shards:
        if s.whole_rest:
            times[s.start : s.stop] += 1
    held_twice = bool(np.any(times > 1)) or not all(s.whole_rest for s in shards)
    return not held_twice, bool(np.all(times > 0))


def faults(rows: list[dict]) -> list[str]:
    """What is wrong in the rows of one pass, in words."""
    out = []
    for row in rows:
        for state, owners in row["owners"].items():
            where = f"{row['boundary']} {state}"
            out += [
                f"{where}: expected shards that are {what.replace('_', ' ')}"
                for what in ("disjoint", "covering", "as_planned")
                if not owners[what]
            ]
            out += [
                f"{where}: expected zeros in the padding of node {s['node']}"
                for s in owners["shards"]
                if s["padding_zero"] is False
            ]
    return out


def _padding_zero(data, axis: int, slots: range, split: Split) -> bool:
    true = max(min(slots.stop, split.size) - slots.start, 0)
    if true == len(slots):
        return True
    index = (slice(None),) * axis + (slice(true, None),)
    return not np.any(np.asarray(data)[index])


def _shard_json(split: Split, s: Shard) -> dict:
    start, stop = min(s.start, split.size), min(s.stop, split.size)
    return {
        "node": s.node,
        "device": s.device,
        "coordinates": [start, stop],
        "bytes": s.bytes,
        "padding": (s.stop - s.start) - (stop - start),
        "padding_zero": s.padding_zero,
    }
