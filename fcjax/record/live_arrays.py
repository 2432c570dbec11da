"""What the process holds while the interval runs: every live array, told apart.

Inside the interval no node may hold a complete state tensor. `jax.live_arrays()` lists all arrays
of the process, so each of them is put into a class, and one that fits into none is a fault.
"""

import weakref

import jax

from fcjax.decode.decoder import Decoder
from fcjax.sharded import layout
from fcjax.sharded.ownership import STATE

_CLASSES = {layout.PUBLIC: "public", layout.SHARD: "values", layout.COMPLETE: "complete"}
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
        laid, plan = programs.layout, programs.layout.plan
        # The programs never replace these, so their classes and sizes are looked up once.
        self._fixed = {id(a): ("weights", a.nbytes) for a in decoder.params.values()}
        if oracle is not None:
            leaves = jax.tree.leaves(oracle.model)
            self._fixed |= {id(a): ("reference", a.nbytes) for a in leaves}
        self._totals: dict[str, list[int]] = {}
        for kind, size in self._fixed.values():
            _count(self._totals, kind, size)
        known = self._fixed.keys() | self._passing({}).keys()
        # No state of this run existed yet, so what is alive now cannot be it. By weak reference:
        # the number of an array that is gone may be another's.
        self._before = {
            id(a): weakref.ref(a) for a in jax.live_arrays() if id(a) not in known
        }
        sizes = [(programs.batch, tokens) for tokens in (1, programs.chunk)]
        shards = [laid.value(name, *size) for name in layout.names(layout.SHARD) for size in sizes]
        shards += laid.cache(programs.batch, programs.slots)
        # Shapes of a node's shards of state, and shapes in which a node would hold all of one.
        self._shards = {v.sharding.shard_shape(v.shape) for v in shards}
        self._layouts: dict = {}
        self._small = max(programs.batch * programs.chunk, 1)
        kept = [*STATE.values(), *(layout.VALUES[n].dims for n in layout.names(layout.SHARD))]
        self._whole = set()
        for batch, tokens in sizes:
            free = {"B": batch, "T": tokens, "S": programs.slots}
            for dims in kept:
                for size in (plan.cfg.size, plan.padded):
                    self._whole.add(tuple(free.get(d) or size(d) for d in dims))

    def _passing(self, values) -> dict[int, str]:
        """Classes of the arrays that change from pass to pass."""
        known = {id(a): "caches" for layer in self._decoder.caches for a in layer}
        if self._oracle is not None:
            known |= {id(a): "reference" for a in jax.tree.leaves(self._oracle.cache)}
        for name, value in values.items():
            known[id(value)] = _CLASSES[layout.VALUES[name].kind]
        return known

    def look(self, values: dict[str, jax.Array]) -> dict:
        """Arrays and bytes of every class, and what is wrong, at this moment of a pass.

        Args:
          values: of the pass so far, by name.
        """
        known, alive = self._passing(values), jax.live_arrays()
        rest = [a for a in alive if id(a) not in self._fixed]
        classes: dict[str, list[int]] = {}
        if len(alive) - len(rest) == len(self._fixed):
            classes = {kind: list(entry) for kind, entry in self._totals.items()}
        else:  # some are gone
            for kind, size in (self._fixed[id(a)] for a in alive if id(a) in self._fixed):
                _count(classes, kind, size)
        unaccounted = []
        for array in rest:
            stray, whole, size = self._by_layout(array)
            kind = known.get(id(array)) or self._from_before(array) or stray
            if kind is None or (whole and kind not in _MAY_BE_COMPLETE):
                where = sorted(d.id for d in array.devices())
                unaccounted.append({
                    "shape": list(array.shape), "dtype": array.dtype.name, "devices": where,
                })
            else:
                _count(classes, kind, size)
        record = {k: {"arrays": n, "bytes": size} for k, (n, size) in sorted(classes.items())}
        return record | {"unaccounted": unaccounted}

    def _from_before(self, array) -> str | None:
        before = self._before.get(id(array))
        return "before_the_run" if before is not None and before() is array else None

    def _by_layout(self, array) -> tuple[str | None, bool, int]:
        """What its layout tells of an array: the class if no pass has it, is it whole, bytes."""
        sharding = array.sharding
        single = isinstance(sharding, jax.sharding.SingleDeviceSharding)
        key = array.shape, array.dtype, None if single else sharding
        if key not in self._layouts:
            shape = array.shape if single else sharding.shard_shape(array.shape)
            number = jax.numpy.issubdtype(array.dtype, jax.numpy.floating)
            kind = None
            if shape in self._shards:
                kind = "earlier_shards"
            elif array.size <= self._small and not number:
                kind = "public"
            whole = len(shape) > 1 and shape in self._whole
            self._layouts[key] = kind, whole, array.nbytes
        return self._layouts[key]


def _count(classes: dict[str, list[int]], kind: str, size: int) -> None:
    entry = classes.setdefault(kind, [0, 0])
    entry[0] += 1
    entry[1] += size
