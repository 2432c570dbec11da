"""The ownership plan: disjoint, covering, proper; padding is nobody's."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcjax.mesh import AXIS, make_mesh
from fcjax.model.config import QWEN25
from fcjax.model.params import LAYER_PARAMS, leaf, param_dims, param_shapes
from fcjax.sharded.operators import INTERVAL_CUTS, TENSOR_PARALLEL_CUTS
from fcjax.sharded.ownership import SPLIT_DIMS, STATE, Plan, Split
from tests import models

FIELDS = {
    "D": "hidden_size", "K": "num_key_value_heads", "F": "intermediate_size", "V": "vocab_size",
}
sizes = st.integers(1, 200)


def check_split(split):
    """Every true coordinate has one owner, and no one else's slots hold it."""
    owners = [node for node in range(split.nodes) for _ in split.owned(node)]
    coordinates = [c for node in range(split.nodes) for c in split.owned(node)]
    assert coordinates == list(range(split.size))  # disjoint, covering, in order
    for coordinate, node in zip(coordinates, owners, strict=True):
        assert coordinate // split.block == node  # where a sharded array has it
    assert split.padded == split.block * split.nodes
    assert split.size <= split.padded < split.size + split.nodes  # no more padding than needed
    assert all(len(split.owned(node)) <= split.block for node in range(split.nodes))


@given(size=st.integers(1, 5000), nodes=st.integers(1, 40))
@settings(deadline=None)
def test_any_split(size, nodes):
    check_split(Split("D", size, nodes))


@pytest.mark.parametrize("nodes", range(2, 14))
@pytest.mark.parametrize("cfg", QWEN25.values(), ids=QWEN25)
def test_every_named_size_over_2_to_13_nodes(cfg, nodes):
    plan = Plan(cfg, nodes)
    for dim in SPLIT_DIMS:
        split = plan.split(dim)
        assert (split.size, split.nodes) == (cfg.size(dim), nodes)
        check_split(split)
        for node in range(nodes):
            assert len(split.owned(node)) < split.size  # proper: no one owns all of it
            assert dim == "K" or split.owned(node)  # only KV groups can be too few for all
    counts = [len(plan.split("K").owned(node)) for node in range(nodes)]
    assert sum(counts) == cfg.K and max(counts) == -(-cfg.K // nodes)


@given(D=sizes, K=sizes, F=sizes, V=sizes, nodes=st.integers(-1, 30))
@settings(deadline=None, max_examples=300)
def test_any_sizes_are_split_rightly_or_refused(D, K, F, V, nodes):
    cfg = dataclasses.replace(models.THREE, D=D, K=K, F=F, V=V)
    of = {"D": D, "K": K, "F": F, "V": V}
    proper = nodes > 1 and all(size > 1 for size in of.values())
    each = nodes > 1 and all((nodes - 1) * -(-of[dim] // nodes) < of[dim] for dim in "DFV")
    if proper and each:
        plan = Plan(cfg, nodes)
        for dim in SPLIT_DIMS:
            check_split(plan.split(dim))
            assert all(len(plan.split(dim).owned(q)) < of[dim] for q in range(nodes))
    else:
        with pytest.raises(ValueError, match="^nodes: "):
            Plan(cfg, nodes)


@given(size=st.integers(2, 60), nodes=st.integers(2, 8))
@settings(deadline=None)
def test_an_array_laid_out_by_the_plan_is_where_the_plan_says(size, nodes):
    """The plan's runs against JAX's own cutting of an array: padding holds -1."""
    split = Split("D", size, nodes)
    x = np.concatenate([np.arange(size), np.full(split.padded - size, -1)])
    sharded = jax.device_put(x, jax.NamedSharding(make_mesh(nodes), jax.P(AXIS)))
    for node, shard in enumerate(sharded.addressable_shards):
        assert [c for c in np.asarray(shard.data) if c >= 0] == list(split.owned(node))


def test_an_uneven_split_by_hand():
    split = Split("F", 8960, 3)
    assert (split.block, split.padded) == (2987, 8961)
    assert [split.owned(q) for q in range(3)] == [
        range(0, 2987), range(2987, 5974), range(5974, 8960),
    ]
    groups = Split("K", 2, 3)
    assert (groups.block, groups.padded) == (1, 3)
    assert [list(groups.owned(q)) for q in range(3)] == [[0], [1], []]


# Refusals


@pytest.mark.parametrize(
    "changes, nodes, dim, numbers",
    [
        ({}, 1, None, ("at least 2", "got 1")),
        ({}, 0, None, ("at least 2", "got 0")),
        ({}, -3, None, ("at least 2", "got -3")),
        (dict(K=1), 2, "K", ("1 over 2", "all on node 0")),
        (dict(D=30), 7, "D", ("30 over 7", "none on node 6", "with 5 on each")),
        (dict(F=5), 4, "F", ("5 over 4", "none on node 3", "with 2 on each")),
        (dict(V=3), 4, "V", ("3 over 4", "none on node 3", "with 1 on each")),
    ],
)
def test_refusals_name_the_field_and_both_numbers(changes, nodes, dim, numbers):
    with pytest.raises(ValueError) as e:
        Plan(dataclasses.replace(models.THREE, **changes), nodes)
    message = str(e.value)
    assert message.startswith("nodes: " + (FIELDS[dim] if dim else ""))
    for number in numbers:
        assert number in message


def test_fewer_devices_than_nodes():
    with pytest.raises(ValueError) as e:
        make_mesh(13)
    assert str(e.value) == "nodes: expected at least 13 devices, got 12 of platform cpu"


# Layouts


@pytest.mark.parametrize("nodes", [2, 3, 7])
def test_state_layouts(nodes):
    """Every state tensor has one split axis; a node's part of it is one block."""
    plan, free = Plan(models.THREE, nodes), {"B": 11, "T": 13, "S": 17}
    for name, dims in STATE.items():
        split, spec = plan.state_split(name), plan.state_spec(name)
        shape = plan.state_shape(name, **{d: n for d, n in free.items() if d in dims})
        assert [d for d in dims if d in SPLIT_DIMS] == [split.dim]  # and no second one
        sharding = jax.NamedSharding(make_mesh(nodes), spec)
        for d, whole, mine in zip(dims, shape, sharding.shard_shape(shape), strict=True):
            if d == split.dim:
                assert (whole, mine) == (split.padded, split.block)
            else:
                assert whole == mine == free.get(d, 0) or whole == mine == plan.cfg.size(d)


def test_heads_are_never_cut():
    """Keys, values and the queries that read them lie on the same node, whole groups at a time."""
    plan = Plan(models.GQA, 2)
    for name in "q", "k", "v", "cache_k", "cache_v", "attention":
        assert plan.state_split(name) == plan.split("K")
        assert plan.state_spec(name)[STATE[name].index("K")] == AXIS
    for name in "q", "k", "v", "attention":
        assert plan.state_spec(name)[-1] is None  # H


@pytest.mark.parametrize("nodes", [2, 3, 7])
@pytest.mark.parametrize("cuts", [INTERVAL_CUTS, TENSOR_PARALLEL_CUTS], ids=["interval", "tp"])
def test_weight_layouts(nodes, cuts):
    cfg = models.UNTIED
    plan = Plan(cfg, nodes)
    for path, dims in param_dims(cfg).items():
        if path in ("embed", "head") and cuts is TENSOR_PARALLEL_CUTS:
            continue  # tables are laid out by INTERVAL_CUTS everywhere
        cut = cuts[leaf(path)].dim
        shape, spec = plan.weight_shape(path, cuts), plan.weight_spec(path, cuts)
        true = param_shapes(cfg)[path]
        assert list(spec) == [AXIS if d == cut else None for d in dims]
        for d, padded, size in zip(dims, shape, true, strict=True):
            one_side_is_state = d == cut or (cuts is INTERVAL_CUTS and d in SPLIT_DIMS)
            assert padded == (plan.split(d).padded if one_side_is_state else size)


def test_interval_cuts_follow_the_state_that_is_multiplied():
    """y_q = sum_r W[q, r] x_r: node r's block of W has the rows of its own shard of x."""
    contracted = {"qkv": "D", "out": "K", "gate_up": "D", "down": "F"}
    for name, dim in contracted.items():
        assert INTERVAL_CUTS[name].dim == dim and LAYER_PARAMS[name].dims[0] == dim
    # A bias and a gain belong to the owner of the coordinates that they are added to or multiply.
    assert (INTERVAL_CUTS["qkv_bias"].dim, INTERVAL_CUTS["input_norm"].dim) == ("K", "D")
    # Under tensor parallelism it is the other side, and every node has the whole norm.
    beside = {"input_norm": None, "qkv": "K", "qkv_bias": "K", "out": "K", "post_norm": None}
    beside |= {"gate_up": "F", "down": "F", "norm": None, "q_norm": None, "k_norm": None}
    assert {name: cut.dim for name, cut in TENSOR_PARALLEL_CUTS.items()} == beside


def test_published_sizes_over_two_nodes():
    """Qwen2.5-1.5B on two nodes, as the published experiment ran it."""
    plan = Plan(QWEN25["1.5b"], 2)
    assert plan.state_shape("residual", B=1, T=1) == (1, 1, 1536)
    assert [plan.split("D").owned(q) for q in range(2)] == [range(768), range(768, 1536)]
    assert plan.state_shape("cache_k", B=1, S=64) == (1, 2, 64, 128)
    assert plan.weight_shape("layers.0.qkv", INTERVAL_CUTS) == (1536, 2, 8, 128)
    assert plan.weight_shape("layers.0.gate_up", INTERVAL_CUTS) == (1536, 2, 8960)


def test_description_is_plain_data_with_every_owner():

    plan = Plan(QWEN25["1.5b"], 3)
    said = json.loads(json.dumps(plan.describe()))
    assert said["nodes"] == 3
    assert said["splits"]["F"] == {
        "meaning": "intermediate_size", "size": 8960, "padded": 8961,
        "owned": [[0, 2987], [2987, 5974], [5974, 8960]],
    }
    assert said["splits"]["K"]["owned"] == [[0, 1], [1, 2], [2, 2]]
    assert said["state"]["cache_k"] == {"dims": ["B", "K", "S", "H"], "split": "K"}
    assert said["state"].keys() == STATE.keys()


# The mesh


def lower_double(mesh, spec):
    """A program that takes a value asked for with `jax.P()`, given as `spec`."""
    fn = jax.jit(jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=jax.P(), out_specs=jax.P()))
    return fn.lower(jax.ShapeDtypeStruct((8,), jnp.float32, sharding=jax.NamedSharding(mesh, spec)))


def test_an_explicit_mesh_refuses_what_an_auto_mesh_gathers():
    lower_double(make_mesh(4), jax.P())  # as asked for
    with pytest.raises(ValueError, match="in_specs"):
        lower_double(make_mesh(4), jax.P(AXIS))
    auto = jax.make_mesh(
        (4,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4]
    )
    assert "all-gather" in lower_double(auto, jax.P(AXIS)).compile().as_text()


@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
def test_node_q_is_device_q(nodes):
    mesh = make_mesh(nodes)
    assert mesh.axis_names == (AXIS,)
    assert list(mesh.devices) == jax.devices()[:nodes]
    assert mesh.axis_types == (jax.sharding.AxisType.Explicit,)
