"""What the process holds while the interval runs: every live array, told apart.

Inside the interval no node may hold a complete state tensor. `jax.live_arrays()` lists all arrays
of the process, so each of them is put into a class, and one that fits into none is a fault.
"""

import weakref

import jax

from fcjax.decode import Decoder
from fcjax.ownership import STATE
from fcjax.reductions import COMPLETE

_PUBLIC = ("tokens", "pos", "seed", "next_tokens")
# These may be complete: the all-gather's results, whole weights, and what the check needs.
_MAY_BE_COMPLETE = ("complete", "weights", "reference", "before_the_run")


class Live:
    """Classes of the arrays of this process, for one decoder."""

    def __init__(self, decoder: Decoder, oracle=None):
        """
        Args:
          decoder: before its first pass.
          oracle: the unsharded reference beside it, if there is one.
        """
        self._decoder, self._oracle = decoder, oracle
        programs = decoder.programs
        model, cfg = programs.model, programs.model.plan.cfg
        # The programs never replace these, so their classes and sizes are looked up once.
        self._fixed = {id(a): ("weights", a.nbytes) for a in decoder.params.values()}
        if oracle is not None:
            leaves = jax.tree.leaves(oracle.model)
            self._fixed |= {id(a): ("reference", a.nbytes) for a in leaves}
        known = self._fixed.keys() | self._passing({}).keys()
        # No state of this run existed yet, so what is alive now cannot be it. By weak reference:
        # the number of an array that is gone may be another's.
        self._before = {
            id(a): weakref.ref(a) for a in jax.live_arrays() if id(a) not in known
        }  # fmt: skip
        sizes = [(programs.batch, tokens) for tokens in (1, programs.chunk)]
        names = ("residual", "qkv", "logits", "next_tokens", "tokens", "pos", "seed")
        values = [model.value(name, *size) for name in names for size in sizes]
        values += model.cache(programs.batch, programs.slots)
        # Shapes of a node's shards of state, and shapes in which a node would hold all of one.
        self._shards = {_shard_shape(v) for v in values if v.dtype == model.dtype}
        self._small = max(programs.batch * programs.chunk, 1)
        self._whole = set()
        for batch, tokens in sizes:
            free = {"B": batch, "T": tokens, "S": programs.slots}
            for name, dims in STATE.items():
                shape = tuple(free.get(d) or cfg.size(d) for d in dims)
                self._whole |= {shape, model.plan.state_shape(name, **_of(free, dims))}
            for groups in (cfg.K, model.plan.split("K").padded):
                self._whole.add((batch, tokens, groups, cfg.C, cfg.H))

    def _passing(self, values) -> dict[int, str]:
        """Classes of the arrays that change from pass to pass."""
        known = {id(a): "caches" for layer in self._decoder.caches for a in layer}
        if self._oracle is not None:
            known |= {id(a): "reference" for a in jax.tree.leaves(self._oracle.cache)}
        for name, value in values.items():
            kind = "complete" if name in COMPLETE else "public" if name in _PUBLIC else "values"
            known[id(value)] = kind
        return known

    def look(self, values: dict[str, jax.Array]) -> dict:
        """Arrays and bytes of every class, and what is wrong, at this moment of a pass.

        Args:
          values: of the pass so far, by name.
        """
        known = self._passing(values)
        classes: dict[str, list[int]] = {}
        unaccounted = []
        for array in jax.live_arrays():
            number = id(array)
            fixed = self._fixed.get(number)
            if fixed is None:
                shape = _shard_shape(array)
                kind = known.get(number) or self._stray(array, shape)
                if kind not in _MAY_BE_COMPLETE and len(shape) > 1 and shape in self._whole:
                    kind = None
                fixed = kind, array.nbytes
            kind, size = fixed
            if kind is None:
                where = sorted(d.id for d in array.devices())
                unaccounted.append({
                    "shape": list(array.shape), "dtype": array.dtype.name, "devices": where,
                })  # fmt: skip
                continue
            entry = classes.setdefault(kind, [0, 0])
            entry[0] += 1
            entry[1] += size
        found = {k: {"arrays": n, "bytes": size} for k, (n, size) in sorted(classes.items())}
        return found | {"unaccounted": unaccounted}

    def _stray(self, array, shape) -> str | None:
        """The class of an array that belongs to no pass that is running."""
        before = self._before.get(id(array))
        if before is not None and before() is array:
            return "before_the_run"
        if shape in self._shards:
            return "earlier_shards"
        if array.size <= self._small and not jax.numpy.issubdtype(array.dtype, jax.numpy.floating):
            return "public"
        return None


def _shard_shape(array) -> tuple[int, ...]:
    if isinstance(array.sharding, jax.sharding.SingleDeviceSharding):
        return array.shape
    return array.sharding.shard_shape(array.shape)


def _of(free, dims):
    return {d: n for d, n in free.items() if d in dims}
