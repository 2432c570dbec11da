"""The programs of a whole model on nodes, against the unsharded reference."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.mesh import make_mesh
from fcjax.model import reference
from fcjax.model.params import param_dims, param_shapes
from fcjax.sharded import programs
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from tests import models, nodes

BOUND = 5e-6  # a few layers of f32 rounding; the project's bound is 1e-5
LENGTH = 16

# Every N, both batches, prefill and single tokens, first layer 0 and later, depth 1 and more, tied
# and untied, with and without nodes that own no KV group.
RUNS = {
    # name: model, N, first, depth, batch, tokens of each pass
    "2 nodes": (models.THREE, 2, 0, 1, 1, (5, 1, 1)),
    "2 nodes, 14 heads in 2 groups": (models.GQA, 2, 1, 1, 3, (5, 1)),
    "3 nodes, later layer": (models.THREE, 3, 1, 1, 3, (1, 5, 1)),
    "4 nodes, two layers": (models.UNTIED, 4, 1, 2, 1, (5, 1)),
    "5 nodes, one head a group": (models.MHA, 5, 0, 2, 3, (5, 1)),
    "7 nodes, two layers from 0": (models.UNTIED, 7, 0, 2, 3, (1, 1, 5)),
    "2 nodes, whole": (models.THREE, 2, 0, 3, 1, (5, 1, 1)),
    "3 nodes, whole": (models.GQA, 3, 0, 3, 3, (5, 5, 1)),
    "5 nodes, whole, untied": (models.UNTIED, 5, 0, 4, 1, (1, 5, 1)),
    "7 nodes, whole": (models.MHA, 7, 0, 3, 3, (5, 1)),
}


@pytest.fixture(scope="module", params=RUNS.values(), ids=RUNS)
def run(request):
    """A run of some passes: the nodes, every pass's outputs, and the reference's."""
    cfg, N, first, depth, B, passes = request.param
    params = models.random_params(cfg)
    on_nodes = nodes.Nodes(cfg, N, first, depth, params, B, LENGTH)
    model = nodes.reference_model(cfg, params)
    cache = reference.init_cache(cfg, B, LENGTH)
    rng = np.random.default_rng(1)
    outputs, pos = [], 0
    for T in passes:
        tokens = rng.integers(0, cfg.V, (B, T), np.int32)
        residuals, qkv, logits, cache = nodes.run_reference(model, tokens, cache, pos)
        pos += T
        successor = on_nodes.model.interval.successor
        ref = {"residual": residuals[successor]}
        if not on_nodes.model.whole:
            ref |= {"qkv": qkv[successor]}
            ref |= {"complete_residual": ref["residual"], "complete_qkv": ref["qkv"]}
        if T == 1:
            ref["logits"] = logits[:, -1]
        outputs.append((on_nodes.step(tokens), jax.device_get(ref)))
    return on_nodes, outputs, cache


def true(cfg, name, value):
    """A value without its padding."""
    cut = {
        "residual": np.s_[:, :, : cfg.D],
        "qkv": np.s_[:, :, : cfg.K],
        "logits": np.s_[:, : cfg.V],
    }
    return np.asarray(value)[cut[name]] if name in cut else np.asarray(value)


def test_every_pass_is_the_reference(run):
    on_nodes, outputs, _ = run
    cfg = on_nodes.model.plan.cfg
    for values, ref in outputs:
        assert values.keys() - ref.keys() <= {"tokens", "next_tokens"}
        for name, theirs in ref.items():
            assert nodes.error(true(cfg, name, values[name]), theirs) < BOUND, name


def test_the_next_token_is_the_largest_logit_and_on_every_node(run):
    on_nodes, outputs, _ = run
    decoded = [values for values, _ in outputs if "next_tokens" in values]
    assert decoded
    for values in decoded:
        largest = true(on_nodes.model.plan.cfg, "logits", values["logits"]).argmax(1)
        for shard in values["next_tokens"].addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data)[:, 0], largest)


def test_each_node_holds_its_shard_and_no_more(run):
    on_nodes, outputs, _ = run
    plan = on_nodes.model.plan
    for values, ref in outputs:
        for name, dim, axis in ("residual", "D", 2), ("qkv", "K", 2), ("logits", "V", 1):
            if name not in ref:
                continue
            split, value = plan.split(dim), values[name]
            whole = np.moveaxis(true(plan.cfg, name, value), axis, 0)
            assert value.shape[axis] == split.padded
            for q, shard in enumerate(value.addressable_shards):
                owned = split.owned(q)
                assert shard.device == on_nodes.layout.mesh.devices[q]
                mine = np.moveaxis(np.asarray(shard.data), axis, 0)
                assert len(mine) == split.block
                np.testing.assert_array_equal(mine[: len(owned)], whole[owned.start : owned.stop])
                assert not np.any(mine[len(owned) :])  # padding


def test_complete_copies_are_the_same_everywhere(run):
    on_nodes, outputs, _ = run
    for values, _ in outputs:
        for name, value in values.items():
            if not value.sharding.is_fully_replicated:
                continue
            assert len(value.addressable_shards) == on_nodes.model.plan.nodes
            for shard in value.addressable_shards:
                np.testing.assert_array_equal(shard.data, value.addressable_shards[0].data, name)


def test_nothing_complete_leaves_the_whole_model(run):
    """With every layer inside, what any node ends with is its shards and the token."""
    on_nodes, outputs, _ = run
    for values, _ in outputs:
        copied = {n for n, value in values.items() if value.sharding.is_fully_replicated}
        public = {"tokens"} | ({"next_tokens"} & values.keys())
        if on_nodes.model.whole:
            assert copied == public
        else:
            assert copied == public | {"complete_residual", "complete_qkv"}


def test_each_layers_cache_is_on_its_owner(run):
    on_nodes, _, ref = run
    split = on_nodes.model.plan.split("K")
    written = on_nodes.pos
    for cache, ref_cache in zip(on_nodes.caches, ref, strict=True):
        for value, theirs in zip(cache, ref_cache, strict=True):
            for q, shard in enumerate(value.addressable_shards):
                owned = split.owned(q)
                assert shard.device == on_nodes.layout.mesh.devices[q]
                assert shard.data.shape[1] == split.block
                mine = np.asarray(shard.data)
                if owned:
                    expected = theirs[:, owned.start : owned.stop, :written]
                    # A row is one head: few numbers, so twice the bound of whole tokens.
                    assert nodes.error(mine[:, : len(owned), :written], expected) < 2 * BOUND
                assert not np.any(mine[:, len(owned) :])
                assert not np.any(mine[:, :, written:])


@pytest.fixture(scope="module")
def small():
    """Three nodes, layer 0, one row, one token at a time: the programs that several tests run."""
    params = models.random_params(models.THREE)
    return nodes.Nodes(models.THREE, 3, 0, 1, params, 1, LENGTH)


def token(on_nodes, value=3):
    tokens = np.full((1, 1), value, np.int32)
    return {"tokens": jax.device_put(tokens, on_nodes.layout.value("tokens", 1, 1).sharding)}


@pytest.fixture(scope="module")
def whole():
    """Three nodes, every layer inside."""
    params = models.random_params(models.THREE)
    return nodes.Nodes(models.THREE, 3, 0, models.THREE.L, params, 1, LENGTH)


@pytest.mark.parametrize("which", ["small", "whole"])
def test_caches_are_written_in_place(which, request):
    on_nodes = request.getfixturevalue(which)
    before = [c for cache in on_nodes.caches for c in cache]
    places = [[s.data.unsafe_buffer_pointer() for s in c.addressable_shards] for c in before]
    on_nodes.step(np.full((1, 1), 3))
    after = [c for cache in on_nodes.caches for c in cache]
    assert all(c.is_deleted() for c in before)
    assert places == [[s.data.unsafe_buffer_pointer() for s in c.addressable_shards] for c in after]


def test_the_successor_uses_its_q_k_v(small):
    values = token(small) | small.run("before", token(small))
    values |= small.run("interval", values)
    right = small.run("after", values)["logits"]
    qkv = values["complete_qkv"]
    values["complete_qkv"] = jax.device_put(np.asarray(qkv) * 2, qkv.sharding)
    wrong = small.run("after", values)["logits"]
    assert nodes.error(*(true(models.THREE, "logits", x) for x in (wrong, right))) > 1e-3
    # It has no weights to compute them a second time.
    end = small.model.interval.successor
    own = {f"layers.{end}.qkv", f"layers.{end}.qkv_bias"}
    assert not own & set(programs.after(small.model, 1).params)


def test_the_interval_reads_the_real_weights_of_the_successor(small):
    values = token(small) | small.run("before", token(small))
    right = jax.device_get(small.run("interval", values)["complete_qkv"])
    path = f"layers.{small.model.interval.successor}.qkv_bias"
    own = small.params[path]
    try:
        small.params[path] = jax.device_put(np.asarray(own) + 1, own.sharding)
        moved = jax.device_get(small.run("interval", values)["complete_qkv"])
    finally:
        small.params[path] = own
    np.testing.assert_allclose(moved - right, 1, atol=1e-5)


def test_another_layout_is_refused(small):
    """A complete residual can't be slipped into the interval."""
    values = token(small) | small.run("before", token(small))
    x = values["residual"]
    values["residual"] = jax.device_put(np.asarray(x), values["tokens"].sharding)
    with pytest.raises(ValueError, match="sharding"):
        small.run("interval", values)


def test_another_layout_is_refused_when_traced(small):
    program, layout = programs.interval(small.model, 1), small.layout
    fn, (params, caches, value, pos) = programs.mapped(program, layout, 1, 1, LENGTH)
    fn = jax.jit(fn)
    fn.lower(params, caches, value, pos)  # the right layout is taken
    complete = jax.ShapeDtypeStruct(
        value.shape, value.dtype, sharding=jax.NamedSharding(layout.mesh, jax.P())
    )
    with pytest.raises(ValueError, match="in_specs"):
        fn.lower(params, caches, complete, pos)


def test_an_unknown_value_is_an_error(small):
    with pytest.raises(ValueError, match="value: expected one of tokens, .*, got 'resdual'"):
        small.layout.value("resdual", 1, 1)


@pytest.mark.parametrize("which, depth", [("small", 1), ("whole", models.THREE.L)])
def test_the_same_step_twice_is_the_same_bit_for_bit(which, depth, request):
    first, params = request.getfixturevalue(which), models.random_params(models.THREE)
    again = nodes.Nodes(models.THREE, 3, 0, depth, params, 1, LENGTH)
    again._compiled, again.pos = first._compiled, first.pos
    again.caches = jax.tree.map(jnp.copy, first.caches)
    tokens = np.full((1, 1), 5, np.int32)
    ours, theirs = first.step(tokens), again.step(tokens)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], name)


@pytest.mark.parametrize("which", ["small", "whole"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_abstract_values_are_what_the_programs_give(which, tokens, request):
    on_nodes = request.getfixturevalue(which)
    at = on_nodes.pos
    values = on_nodes.step(np.full((1, tokens), 5))
    on_nodes.pos = at
    named = {n for program in programs.of_pass(on_nodes.model, tokens) for n in program.results}
    assert values.keys() == named | {"tokens"}
    for name, value in values.items():
        abstract = on_nodes.layout.value(name, 1, tokens)
        assert (value.shape, value.dtype) == (abstract.shape, abstract.dtype), name
        assert value.sharding.is_equivalent_to(abstract.sharding, value.ndim), name


@pytest.mark.parametrize("depth", [1, models.THREE.L])
def test_bf16_model(depth):
    """bf16 runs too; no further from the f32 reference than its rounding explains."""
    cfg, params = models.THREE, models.random_params(models.THREE)
    layout = Layout(ShardedModel(Plan(cfg, 2), Interval(0, depth)), make_mesh(2), jnp.bfloat16)
    on_nodes = nodes.Nodes(cfg, 2, 0, depth, params, 1, LENGTH)
    on_nodes.layout = layout
    on_nodes.params = {p: nodes.place(params[p], t) for p, t in layout.params().items()}
    on_nodes.caches = layout.init_cache(1, LENGTH)
    rounded = {p: np.asarray(x.astype(jnp.bfloat16), np.float32) for p, x in params.items()}
    ref, cache = nodes.reference_model(cfg, rounded), reference.init_cache(cfg, 1, LENGTH)
    for pos, tokens in (0, [[3, 1, 4, 1]]), (4, [[5]]):
        tokens = np.array(tokens, np.int32)
        values = on_nodes.step(tokens)
        *_, logits, cache = nodes.run_reference(ref, tokens, cache, pos)
    assert values["logits"].dtype == jnp.bfloat16
    assert 1e-4 < nodes.error(true(cfg, "logits", values["logits"]), logits[:, -1]) < 0.05


@pytest.mark.parametrize("first, depth", [(0, 1), (0, 2), (1, 1), (0, 3), (2, 1), (0, 4)])
def test_interval_layers(first, depth):
    interval = Interval(first, depth)
    interval.check(4)
    assert list(interval.layers) == list(range(first, first + depth))
    assert interval.successor == first + depth


@pytest.mark.parametrize("first, depth", [(-1, 1), (3, 1), (2, 2), (1, 4), (0, 5), (0, 0), (1, -1)])
def test_interval_outside_the_model_is_refused(first, depth):
    with pytest.raises(ValueError) as e:
        ShardedModel(Plan(models.UNTIED, 2), Interval(first, depth))
    field, value = ("layer", first) if 1 <= depth <= 4 else ("depth", depth)
    message = str(e.value)
    assert message.startswith(f"{field}: expected ") and message.endswith(f", got {value}")
    assert "4 layers" in message
    assert "to -" not in message  # no empty range is offered


@pytest.mark.parametrize("depth", [1, 4])
def test_every_parameter_is_read_by_a_program(depth):
    for cfg in (dataclasses.replace(models.THREE, L=4), models.UNTIED):
        model = ShardedModel(Plan(cfg, 2), Interval(0, depth))
        read = [path for program in programs.of_pass(model, 1) for path in program.params]
        assert set(read) == set(param_dims(cfg))
        twice = {path for path in read if read.count(path) > 1}
        # A tied table is read by the programs of both ends.
        assert twice == ({"embed"} if cfg.tied and depth == 1 else set())


@pytest.mark.parametrize("depth", [1, models.THREE.L])
def test_a_node_holds_its_share_of_every_matrix(depth):
    cfg = dataclasses.replace(models.THREE, K=2, D=48, F=60, V=68)
    model = ShardedModel(Plan(cfg, 2), Interval(0, depth))
    for path, target in Layout(model, make_mesh(2)).params().items():
        shard = target.sharding.shard_shape(target.shape)
        if len(target.shape) > 1 or path in programs.interval(model, 1).params:
            assert np.prod(shard) * 2 == np.prod(param_shapes(cfg)[path]), path
        else:
            assert shard == target.shape, path  # norms of unmodified layers, on every node
