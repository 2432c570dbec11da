"""Shares of the nodes, counted by hand."""

import math

import jax
import pytest

from fcjax.mesh import make_mesh
from fcjax.model.params import param_shapes
from fcjax.sharded import balance
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from tests import models


@pytest.mark.parametrize("N", [2, 3, 5, 7])
@pytest.mark.parametrize("cfg", models.ALL.values(), ids=models.ALL)
def test_shares_add_up_to_the_model(cfg, N):
    layout = Layout(ShardedModel(Plan(cfg, N), Interval(0, cfg.L)), make_mesh(N))
    found = balance.shares(layout.model, "float32", batch=2, slots=9)
    whole = 4 * sum(map(math.prod, param_shapes(cfg).values()))
    whole += 4 * (N - 1) * 2 * cfg.H * cfg.L * cfg.qk_norm  # gains of q and k heads: on every node
    assert sum(s.weights - s.weight_padding for s in found) == whole  # nothing else twice
    caches = jax.tree.leaves([layout.cache(2, 9)] * cfg.L)
    assert N * found[0].cache == sum(4 * math.prod(c.shape) for c in caches)
    assert sum(s.cache - s.cache_padding for s in found) == 4 * 2 * cfg.L * 2 * cfg.K * 9 * cfg.H
    assert len({(s.weights, s.cache) for s in found}) == 1  # every device has the same buffers


def test_shares_by_hand():
    """THREE over 2 nodes: groups 2 and 1, D 23 and 23, F 29 and 29, V 34 and 33 of 67."""
    cfg = models.THREE  # L 3, D 46, K 3, G 2, H 10, F 58, V 67, tied
    first, second = balance.shares(
        ShardedModel(Plan(cfg, 2), Interval(0, 3)), "float32", batch=1, slots=8
    )
    qkv, gate_up, head = 23 * 3 * 4 * 10, 23 * 2 * 58, 67 * 23
    down = 29 * 46
    attention = 2 * 2 * 10 * 8
    layer = lambda groups: qkv + groups * 20 * 46 + gate_up + down + groups * attention  # noqa: E731
    assert first.work == 3 * layer(2) + head
    assert second.work == 3 * layer(1) + head
    assert (first.cache, first.cache_padding) == (4 * 3 * 2 * 2 * 8 * 10, 0)
    assert (second.cache, second.cache_padding) == (first.cache, first.cache // 2)


def test_tensor_parallel_norms_are_on_every_node():
    cfg = models.UNTIED
    model = ShardedModel(Plan(cfg, 2), Interval(0))
    found = balance.shares(model, "float32", batch=1, slots=8)
    whole = 4 * sum(map(math.prod, param_shapes(cfg).values()))
    # Two norms of each layer outside the interval, but the successor's first, and the last norm.
    twice = 4 * cfg.D * (2 * 3 - 1 + 1)
    assert sum(s.weights - s.weight_padding for s in found) == whole + twice


def test_the_table_names_every_node():
    model = ShardedModel(Plan(models.THREE, 3), Interval(0, 3))
    lines = balance.table(model, "float32", 1, 8).splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["node", str(q)] for q in range(3)]
    work = [float(line.split()[-1]) for line in lines[1:4]]
    assert sum(work) == pytest.approx(3, abs=0.002)
