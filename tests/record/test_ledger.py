"""Who holds what, asked of the real arrays: right ones, and ones that lie elsewhere."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.decode.audited import Programs
from fcjax.decode.decoder import Decoder
from fcjax.mesh import make_mesh
from fcjax.record import ledger
from fcjax.record.ledger import Ledger, Shard, coverage, measure
from fcjax.record.live_arrays import Live
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan, Split
from fcjax.sharded.sampling import Sampling
from tests import models
from tests.nodes import place

N = 3
SPLIT = Split("D", 46, N)  # 16, 16 and 14 coordinates, and 2 of padding


def on_nodes(x, spec, devices=slice(0, N)):
    mesh = jax.make_mesh((N,), ("node",), devices=jax.devices()[devices])
    return jax.device_put(x, jax.NamedSharding(mesh, spec))


def residual(value=1.0):
    x = np.zeros((1, 1, SPLIT.padded), np.float32)
    x[:, :, : SPLIT.size] = value
    return x


def test_shards_are_measured_where_they_lie():
    array = on_nodes(residual(), jax.P(None, None, "node"))
    found = measure(array, 2, SPLIT, [0, 1, 2])
    assert found == tuple(
        Shard(q, q, 16 * q, 16 * q + 16, 64, whole_rest=True, padding_zero=True) for q in range(N)
    )
    assert coverage(SPLIT, found) == (True, True)
    assert [s.padding_zero for s in measure(array, 2, SPLIT, [0, 1, 2], look=False)] == [None] * N


def test_numbers_in_the_padding_are_found():
    x = residual()
    x[0, 0, -1] = 1e-30
    found = measure(on_nodes(x, jax.P(None, None, "node")), 2, SPLIT, [0, 1, 2])
    assert [s.padding_zero for s in found] == [True, True, False]


def test_complete_copies_and_other_axes_are_found():
    copies = measure(on_nodes(residual(), jax.P()), 2, SPLIT, [0, 1, 2])
    assert [(s.start, s.stop) for s in copies] == [(0, 48)] * N
    assert coverage(SPLIT, copies) == (False, True)  # every coordinate, and thrice
    rows = np.zeros((3, 1, SPLIT.padded), np.float32)
    along_rows = measure(on_nodes(rows, jax.P("node")), 2, SPLIT, [0, 1, 2])
    assert not any(s.whole_rest for s in along_rows)
    assert coverage(SPLIT, along_rows) == (False, False)


def test_a_device_that_is_no_node_is_found():
    array = on_nodes(residual(), jax.P(None, None, "node"), slice(1, N + 1))
    assert [s.node for s in measure(array, 2, SPLIT, [0, 1, 2])] == [-1, 1, 2]


def test_coverage_counts_coordinates_and_not_padding():
    whole = [Shard(q, q, 16 * q, 16 * q + 16, 64) for q in range(N)]
    assert coverage(SPLIT, whole) == (True, True)
    assert coverage(SPLIT, whole[:2]) == (True, False)
    assert coverage(SPLIT, [*whole, Shard(0, 0, 46, 48, 8)]) == (True, True)
    assert coverage(SPLIT, [*whole, Shard(0, 0, 45, 46, 4)]) == (False, True)


@pytest.fixture(scope="module", params=["layer", "whole"])
def programs(request):
    interval, sampling = Interval(0), Sampling()
    if request.param == "whole":
        interval, sampling = Interval(0, models.GQA.L), Sampling(0.7, 5, 0.9)
    plan, mesh = Plan(models.GQA, N), make_mesh(N)
    found = Programs(
        Layout(ShardedModel(plan, interval, sampling), mesh), batch=2, length=8, chunk=4
    )
    assert found.prepare(1).ok
    return found


def test_the_ledger_names_an_instruction_and_a_reader_for_every_transfer(programs):
    model, verdict = programs.model, programs.audits[1]
    book = Ledger(model, "float32", verdict, (2, 1, programs.slots), [0, 1, 2])
    rows = book.rows(book.as_planned())
    listed = [r for row in rows for r in row["reductions"]] + (book.public or [])
    # XLA may do two of them with one instruction, which then has no order of its own.
    assert sorted((r["instruction"], r["operand"]["elements"]) for r in listed) == sorted(
        (c.instruction, c.sent) for c in verdict.before
    )
    assert all(r["participants"] == [0, 1, 2] for r in listed)
    by_operator = {r["operator"]: r for r in listed}
    readers = {name: [x["operator"] for x in r["read_by"]] for name, r in by_operator.items()}
    assert readers["layers.0.qkv"] == ["layers.0.out"]
    assert readers["layers.0.out"] == ["layer_0/gate_up statistic", "layers.0.gate_up"]
    assert readers["layers.0.gate_up"] == ["layers.0.down"]
    assert readers["layers.0.down"] == ["layer_1/qkv statistic", "layers.1.qkv"]
    assert by_operator["layers.0.qkv"]["received"] == {
        "dim": "K", "coordinates": [[0, 1], [1, 2], [2, 2]],  # two KV groups on three nodes
    }
    if model.whole:
        assert readers["layers.2.down"] == ["head statistic", "embed"]
        assert "largest logit" in readers["embed"] and "best value" in readers["embed"]
        assert readers["chosen token"] == ["(the end of the interval)"]
        assert book.outside is None
    else:
        assert readers["layers.1.qkv"] == ["(the end of the interval)"]
        assert book.outside["reduction"]["kind"] == "all-gather"
        assert book.outside["reduction"]["instruction"] == verdict.after[0].instruction
    assert ledger.faults(rows) == []


def test_what_is_not_as_planned_is_a_fault(programs):
    book = Ledger(programs.model, "float32", programs.audits[1], (2, 1, programs.slots), [0, 1, 2])
    (scope, state), shards = next((k, s) for k, s in book.as_planned().items() if s[0].bytes > 0)
    at = f"{scope} {state}: expected"

    def faults(changed):
        return ledger.faults(book.rows(book.as_planned() | {(scope, state): changed}))

    assert faults(shards) == []
    assert faults(shards[:1]) == [
        f"{at} shards that are covering",
        f"{at} shards that are as planned",
    ]
    moved = (dataclasses.replace(shards[0], device=1), *shards[1:])
    assert faults(moved) == [f"{at} shards that are as planned"]
    dirty = (dataclasses.replace(shards[0], padding_zero=False), *shards[1:])
    assert faults(dirty) == [f"{at} zeros in the padding of node 0"]


def test_live_arrays_are_told_apart_and_a_complete_one_is_a_fault(programs):
    layout, cfg = programs.layout, programs.model.plan.cfg
    random = models.random_params(cfg)
    params = {path: place(random[path], t) for path, t in layout.params().items()}
    decoder = Decoder(programs, params)
    live = Live(decoder)
    value = layout.value("residual", 2, 1)
    values = {"residual": jnp.zeros(value.shape, value.dtype, device=value.sharding)}
    found = live.look(values)
    assert found["unaccounted"] == []
    assert found["weights"]["arrays"] == len(params)
    assert found["caches"]["arrays"] == 2 * cfg.L and found["values"]["arrays"] == 1
    earlier = jnp.zeros(value.shape, value.dtype, device=value.sharding)
    assert live.look(values)["earlier_shards"]["arrays"] == 1
    del earlier
    for shape in (
        (2, 1, cfg.D),  # the residual, complete
        (2, 1, layout.plan.split("D").padded),  # with its padding
        (2, cfg.K, programs.slots, cfg.H),  # a whole cache
        (2, 1, cfg.K, cfg.C, cfg.H),  # q, k and v side by side
        (5, 7),  # whatever it is, it is nothing that is known
    ):
        stray = jax.device_put(np.zeros(shape, np.float32), jax.devices()[1])
        (fault,) = live.look(values)["unaccounted"]
        assert fault == {"shape": list(shape), "dtype": "float32", "devices": [1]}
        del stray
    everywhere = jax.NamedSharding(layout.mesh, jax.P())
    copies = jax.device_put(np.zeros((2, 1, cfg.D), np.float32), everywhere)
    # Declared as the all-gather's result it is told apart; as a value of the interval it is not.
    assert live.look(values | {"complete_residual": copies})["complete"]["arrays"] == 1
    assert live.look(values | {"residual": copies})["unaccounted"][0]["devices"] == [0, 1, 2]
