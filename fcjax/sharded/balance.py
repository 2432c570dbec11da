"""How evenly the nodes share a model: weights, cache and work of each.

Runs of ceil(size / N) coordinates leave the last nodes less where N does not divide a size, and
nodes without any of the KV groups where there are fewer groups than nodes.
"""

import dataclasses
import math

import jax.numpy as jnp

from fcjax.model.params import leaf, param_dims
from fcjax.sharded.interval import ShardedModel
from fcjax.sharded.operators import HEAD, LAYER
from fcjax.table import aligned


@dataclasses.dataclass(frozen=True)
class Share:
    """What one node holds and does.

    Attributes:
      weights: bytes of its blocks, padding included.
      weight_padding: bytes of padding among them.
      cache: bytes of its caches, padding included.
      cache_padding: bytes of padding among them.
      work: multiply-adds for one token of each row, the caches full; padding left out.
    """

    weights: int
    weight_padding: int
    cache: int
    cache_padding: int
    work: int


def shares(model: ShardedModel, dtype, batch: int, slots: int) -> list[Share]:
    """The share of each node, in this type, for B rows and caches of S slots."""
    plan, cfg = model.plan, model.plan.cfg
    item = jnp.dtype(dtype).itemsize
    # A tied table is read by the head; one of its own is only looked up.
    contracted = {op.path(cfg, op.weight, None) for op in (*LAYER, HEAD) if op.weight}
    out = []
    for node in range(plan.nodes):
        own = lambda dim, node=node: len(plan.split(dim).owned(node))  # noqa: E731
        held = owned = work = 0
        for path, dims in param_dims(cfg).items():
            cuts = model.cuts(path)
            cut = cuts[leaf(path)].dim
            held += math.prod(plan.weight_shape(path, cuts)) // (plan.nodes if cut else 1)
            mine = math.prod(own(d) if d == cut else cfg.size(d) for d in dims)
            owned += mine
            if leaf(path) in contracted:
                work += batch * mine
        groups = own("K")
        work += batch * cfg.L * 2 * groups * cfg.G * cfg.H * slots  # scores, and values
        slot = 2 * cfg.L * batch * slots * cfg.H * item
        cache = slot * plan.split("K").block
        out.append(Share(held * item, (held - owned) * item, cache, cache - slot * groups, work))
    return out


def table(model: ShardedModel, dtype, batch: int, slots: int) -> str:
    """The shares as text, each beside an even one."""
    plan = model.plan
    each = shares(model, dtype, batch, slots)
    even = sum(s.work for s in each) / plan.nodes
    whole = sum(s.weights - s.weight_padding for s in each)
    rows = [("", "weights MiB", "padding", "cache MiB", "padding", "work / even")]
    for node, s in enumerate(each):
        sizes = s.weights, s.weight_padding, s.cache, s.cache_padding
        rows.append((f"node {node}", *(f"{n / 2**20:.2f}" for n in sizes), f"{s.work / even:.3f}"))
    return f"{aligned(rows, '>')}\nthe whole model: {whole / 2**20:.2f} MiB of weights"
