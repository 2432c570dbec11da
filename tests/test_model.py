"""The programs of a whole model on nodes, against the unsharded reference."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import reference
from fcjax.model import Interval, Model
from fcjax.ownership import Plan, make_mesh
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
        residuals, qkv, logits, cache = nodes.run_reference(model, tokens, cache, jnp.int32(pos))
        pos += T
        successor = on_nodes.model.interval.successor
        ref = residuals[successor], qkv[successor], logits[:, -1]
        outputs.append((on_nodes.step(tokens), jax.device_get(ref)))
    return on_nodes, outputs, cache


def test_every_pass_is_the_reference(run):
    on_nodes, outputs, _ = run
    cfg = on_nodes.model.plan.cfg
    for values, ref in outputs:
        x_BTDn, qkv_BTKnCH, x_BTD, qkv_BTKCH, logits_BV = jax.device_get(values)
        assert nodes.error(x_BTDn[:, :, : cfg.D], ref[0]) < BOUND
        assert nodes.error(qkv_BTKnCH[:, :, : cfg.K], ref[1]) < BOUND
        assert nodes.error(x_BTD, ref[0]) < BOUND
        assert nodes.error(qkv_BTKCH, ref[1]) < BOUND
        assert nodes.error(logits_BV, ref[2]) < BOUND


def test_each_node_holds_its_shard_and_no_more(run):
    on_nodes, outputs, _ = run
    plan = on_nodes.model.plan
    for (x_BTDn, qkv_BTKnCH, x_BTD, qkv_BTKCH, _), _ in outputs:
        for value, complete, dim in (x_BTDn, x_BTD, "D"), (qkv_BTKnCH, qkv_BTKCH, "K"):
            split = plan.split(dim)
            complete = np.asarray(complete)
            assert value.shape[2] == split.padded
            for q, shard in enumerate(value.addressable_shards):
                owned = split.owned(q)
                assert shard.device == on_nodes.model.mesh.devices[q]
                assert shard.data.shape[2] == split.block
                mine = complete[:, :, owned.start : owned.stop]
                np.testing.assert_array_equal(shard.data[:, :, : len(owned)], mine)
                assert not np.any(shard.data[:, :, len(owned) :])  # padding


def test_complete_copies_are_the_same_everywhere(run):
    on_nodes, outputs, _ = run
    for (_, _, *complete), _ in outputs:
        for value in complete:
            assert len(value.addressable_shards) == on_nodes.model.plan.nodes
            for shard in value.addressable_shards:
                np.testing.assert_array_equal(shard.data, value.addressable_shards[0].data)


def test_each_layers_cache_is_on_its_owner(run):
    on_nodes, _, ref = run
    split = on_nodes.model.plan.split("K")
    written = on_nodes.pos
    for cache, ref_cache in zip(on_nodes.caches, ref, strict=True):
        for value, theirs in zip(cache, ref_cache, strict=True):
            for q, shard in enumerate(value.addressable_shards):
                owned = split.owned(q)
                assert shard.device == on_nodes.model.mesh.devices[q]
                assert shard.data.shape[1] == split.block
                mine = np.asarray(shard.data)
                if owned:
                    expected = theirs[:, owned.start : owned.stop, :written]
                    assert nodes.error(mine[:, : len(owned), :written], expected) < BOUND
                assert not np.any(mine[:, len(owned) :])
                assert not np.any(mine[:, :, written:])


@pytest.fixture(scope="module")
def small():
    """Three nodes, layer 0, one row, one token at a time: the programs that several tests run."""
    params = models.random_params(models.THREE)
    return nodes.Nodes(models.THREE, 3, 0, 1, params, 1, LENGTH)


def token(on_nodes, value=3):
    tokens = np.full((1, 1), value, np.int32)
    return jax.device_put(tokens, on_nodes.model.value("tokens", 1, 1).sharding)


def test_caches_are_written_in_place(small):
    before = [c for cache in small.caches for c in cache]
    places = [[s.data.unsafe_buffer_pointer() for s in c.addressable_shards] for c in before]
    small.step(token(small))
    after = [c for cache in small.caches for c in cache]
    assert all(c.is_deleted() for c in before)
    assert places == [[s.data.unsafe_buffer_pointer() for s in c.addressable_shards] for c in after]


def test_the_successor_uses_its_q_k_v(small):
    (x,) = small.run("before", 1, token(small))
    _, _, x_BTD, qkv_BTKCH = small.run("inside", 1, x)
    pos = small.pos
    right = jax.device_get(small.run("after", 1, x_BTD, qkv_BTKCH)[0])
    other = jax.device_put(np.asarray(qkv_BTKCH) * 2, qkv_BTKCH.sharding)
    assert small.pos == pos
    wrong = jax.device_get(small.run("after", 1, x_BTD, other)[0])
    assert nodes.error(wrong, right) > 1e-3
    # It has no weights to compute them a second time.
    end = small.model.interval.successor
    assert not set(small.model.after.params) & {f"layers.{end}.qkv", f"layers.{end}.qkv_bias"}


def test_the_interval_reads_the_real_weights_of_the_successor(small):
    (x,) = small.run("before", 1, token(small))
    *_, right = jax.device_get(small.run("inside", 1, x))
    path = f"layers.{small.model.interval.successor}.qkv_bias"
    own = small.params[path]
    try:
        small.params[path] = jax.device_put(np.asarray(own) + 1, own.sharding)
        *_, moved = jax.device_get(small.run("inside", 1, x))
    finally:
        small.params[path] = own
    np.testing.assert_allclose(moved - right, 1, atol=1e-5)


def test_another_layout_is_refused(small):
    """A complete residual can't be slipped into the interval."""
    (x,) = small.run("before", 1, token(small))
    complete = jax.device_put(np.asarray(x), small.model.value("tokens", 1, 1).sharding)
    assert complete.shape == x.shape
    with pytest.raises(ValueError, match="sharding"):
        small.run("inside", 1, complete)


def test_another_layout_is_refused_when_traced(small):
    program, model = small.model.inside, small.model
    params = {path: model.param(path) for path in program.params}
    caches = [model.cache(1, LENGTH)] * len(program.layers)
    spec = lambda tree: jax.tree.map(lambda leaf: leaf.sharding.spec, tree)  # noqa: E731
    value, pos = model.value("residual", 1, 1), jax.ShapeDtypeStruct((), jnp.int32)
    results = [model.value(name, 1, 1) for name in program.results]
    fn = jax.jit(
        jax.shard_map(
            program.fn,
            mesh=model.mesh,
            in_specs=(*spec((params, caches, value)), jax.P()),
            out_specs=spec((*results, caches)),
        )
    )
    fn.lower(params, caches, value, pos)  # the right layout is taken
    complete = jax.ShapeDtypeStruct(
        value.shape, value.dtype, sharding=jax.NamedSharding(model.mesh, jax.P())
    )
    with pytest.raises(ValueError, match="in_specs"):
        fn.lower(params, caches, complete, pos)


def test_the_same_step_twice_is_the_same_bit_for_bit(small):
    again = nodes.Nodes(models.THREE, 3, 0, 1, models.random_params(models.THREE), 1, LENGTH)
    again._compiled, again.pos = small._compiled, small.pos
    again.caches = jax.tree.map(jnp.copy, small.caches)
    tokens = np.full((1, 1), 5, np.int32)
    for a, b in zip(small.step(tokens), again.step(tokens), strict=True):
        np.testing.assert_array_equal(a, b)


def test_abstract_values_are_what_the_programs_give(small):
    (x,) = small.run("before", 1, token(small))
    results = small.run("inside", 1, x)
    (logits,) = small.run("after", 1, *results[2:])
    names = (*small.model.inside.results, "logits")
    for name, value in zip(names, (*results, logits), strict=True):
        abstract = small.model.value(name, 1, 1)
        assert (value.shape, value.dtype) == (abstract.shape, abstract.dtype), name
        assert value.sharding.is_equivalent_to(abstract.sharding, value.ndim), name


def test_bf16_model():
    """bf16 runs too; no further from the f32 reference than its rounding explains."""
    cfg, params = models.THREE, models.random_params(models.THREE)
    model = Model(Plan(cfg, 2), Interval(0), make_mesh(2), jnp.bfloat16)
    on_nodes = nodes.Nodes(cfg, 2, 0, 1, params, 1, LENGTH)
    on_nodes.model = model
    on_nodes.params = {p: nodes.place(params[p], t) for p, t in model.params().items()}
    on_nodes.caches = model.init_cache(1, LENGTH)
    tokens = np.array([[3, 1, 4, 1, 5]], np.int32)
    *_, logits = on_nodes.step(tokens)
    rounded = {p: np.asarray(x.astype(jnp.bfloat16), np.float32) for p, x in params.items()}
    ref = nodes.reference_model(cfg, rounded)
    _, _, ref_logits, _ = nodes.run_reference(
        ref, tokens, reference.init_cache(cfg, 1, LENGTH), jnp.int32(0)
    )
    assert logits.dtype == jnp.bfloat16
    assert 1e-4 < nodes.error(logits, ref_logits[:, -1]) < 0.05


@pytest.mark.parametrize("first, depth", [(0, 1), (0, 2), (1, 1), (0, 3), (2, 1)])
def test_interval_layers(first, depth):
    interval = Interval(first, depth)
    interval.check(4)
    assert list(interval.layers) == list(range(first, first + depth))
    assert interval.successor == first + depth


@pytest.mark.parametrize("first, depth", [(-1, 1), (3, 1), (2, 2), (0, 4), (0, 0), (1, -1)])
def test_interval_outside_the_model_is_refused(first, depth):
    with pytest.raises(ValueError) as e:
        Model(Plan(models.UNTIED, 2), Interval(first, depth), make_mesh(2))
    field, value = ("layer", first) if 1 <= depth < 4 else ("depth", depth)
    message = str(e.value)
    assert message.startswith(f"{field}: ") and message.endswith(f"4 layers, got {value}")
    assert "to -" not in message  # no empty range is offered


def test_every_parameter_is_read_by_a_program():
    for cfg in (models.THREE, models.UNTIED):
        model = Model(Plan(cfg, 2), Interval(1), make_mesh(2))
        programs = model.before, model.inside, model.after
        read = [path for program in programs for path in program.params]
        assert set(read) == set(reference.param_dims(cfg))
        twice = {path for path in read if read.count(path) > 1}
        assert twice == ({"embed"} if cfg.tied else set())


def test_a_node_holds_its_share_of_every_matrix():
    cfg = dataclasses.replace(models.THREE, K=2, D=48, F=60, V=68)
    model = Model(Plan(cfg, 2), Interval(0), make_mesh(2))
    for path, target in model.params().items():
        shard = target.sharding.shard_shape(target.shape)
        if len(target.shape) > 1 or path in model.inside.params:
            assert np.prod(shard) * 2 == np.prod(reference.param_shapes(cfg)[path]), path
        else:
            assert shard == target.shape, path  # norms of unmodified layers, on every node
