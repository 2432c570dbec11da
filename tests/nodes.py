"""Running code on emulated nodes, and laying values out on them by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from fcjax.mesh import AXIS, make_mesh
from fcjax.model import reference
from fcjax.sharded import ownership, programs
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from fcjax.sharded.sampling import Sampling


def pad(plan: Plan, dims: str, x) -> np.ndarray:
    """`x` with zeros at the end of every axis whose letter the plan splits."""
    x = np.asarray(x)
    ends = [
        plan.split(d).padded - n if d in ownership.SPLIT_DIMS else 0
        for d, n in zip(dims, x.shape, strict=True)
    ]
    return np.pad(x, [(0, end) for end in ends])


def on_nodes(nodes: int, fn, arguments, results):
    """Run ``fn`` as one node's code; returns host arrays, padding included.

    Args:
      nodes: N.
      fn: called with the node's own blocks.
      arguments: pairs (array, axis that is split or None).
      results: per result, the axis that is split or None.
    """
    mesh = make_mesh(nodes)

    def spec(axis):
        return jax.P() if axis is None else jax.P(*[None] * axis, AXIS)

    placed = [jax.device_put(x, jax.NamedSharding(mesh, spec(axis))) for x, axis in arguments]
    mapped = jax.shard_map(
        fn,
        mesh=mesh,
        in_specs=tuple(spec(axis) for _, axis in arguments),
        out_specs=tuple(map(spec, results)),
    )
    return jax.device_get(jax.jit(mapped)(*placed))


def place(x, target: jax.ShapeDtypeStruct) -> jax.Array:
    """`x`, padded with zeros to the target's shape, laid out as the target says."""
    x = np.pad(np.asarray(x), [(0, n - m) for n, m in zip(target.shape, x.shape, strict=True)])
    return jax.device_put(x.astype(target.dtype), target.sharding)


class Nodes:
    """The programs of a model on N nodes, run by hand, with their caches."""

    def __init__(self, cfg, nodes, first, depth, params, batch, length, sampling=Sampling()):  # noqa: B008
        plan, mesh = Plan(cfg, nodes), make_mesh(nodes)
        self.model = ShardedModel(plan, Interval(first, depth), sampling)
        self.layout = Layout(self.model, mesh)
        self.params = {
            path: place(params[path], target) for path, target in self.layout.params().items()
        }
        self.batch, self.length, self.pos = batch, length, 0
        self.caches = self.layout.init_cache(batch, length)
        self._compiled = {}

    def program(self, name: str, tokens: int):
        """A program for T tokens, and its executable."""
        (program,) = (p for p in programs.of_pass(self.model, tokens) if p.name == name)
        if (name, tokens) not in self._compiled:
            sizes = self.batch, tokens, self.length
            self._compiled[name, tokens] = programs.compile(program, self.layout, *sizes)
        return program, self._compiled[name, tokens]

    def run(self, name: str, values: dict) -> dict:
        """Run one program at the present position; its caches are replaced.

        Args:
          name: "before", "interval" or "after".
          values: by name; "tokens" is always among them.

        Returns:
          Its results by name.
        """
        program, executable = self.program(name, values["tokens"].shape[1])
        *results, caches = executable(
            {path: self.params[path] for path in program.params},
            [self.caches[i] for i in program.layers],
            *((values | self.public())[name] for name in program.arguments),
        )
        for i, cache in zip(program.layers, caches, strict=True):
            self.caches[i] = cache
        return dict(zip(program.results, results, strict=True))

    def public(self) -> dict:
        """Position and seed, on every node."""
        pos_B = np.zeros(self.batch, np.int32) + np.int32(self.pos)
        everywhere = jax.NamedSharding(self.layout.mesh, jax.P())
        return jax.device_put({"pos": pos_B, "seed": np.uint32(0)}, everywhere)

    def step(self, tokens_BT) -> dict:
        """One pass; every value that the programs give, by name."""
        everywhere = jax.NamedSharding(self.layout.mesh, jax.P())
        values = {"tokens": jax.device_put(np.asarray(tokens_BT, np.int32), everywhere)}
        for program in programs.of_pass(self.model, tokens_BT.shape[1]):
            values |= self.run(program.name, values)
        self.pos += tokens_BT.shape[1]
        return values


def reference_model(cfg, params) -> reference.Transformer:
    """The unsharded reference with these parameters."""
    arrays = {path: jnp.asarray(x) for path, x in params.items()}
    return reference.set_params(reference.abstract_model(cfg), arrays)


@jax.jit
def run_reference(model, tokens_BT, cache, pos):
    """Every residual, every layer's qkv, logits of every token, and the cache.

    `pos` is the position of every row's first token, or of each row's.
    """
    pos_B = jnp.broadcast_to(jnp.asarray(pos, jnp.int32), tokens_BT.shape[:1])
    residuals, cache = model(tokens_BT, cache, pos_B)
    qkv = [layer.qkv_proj(x) for layer, x in zip(model.layers, residuals[:-1], strict=True)]
    return residuals, qkv, model.logits(residuals[-1]), cache


def error(out, ref) -> float:
    """Largest relative error of a row, a row being what stands along the last axis."""
    out, ref = (np.asarray(x, np.float64).reshape(-1, np.shape(x)[-1]) for x in (out, ref))
    assert out.shape == ref.shape
    return float(np.max(np.linalg.norm(out - ref, axis=1) / np.linalg.norm(ref, axis=1)))
