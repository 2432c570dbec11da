"""Every operator on shards against the unsharded reference, for even and uneven splits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.mesh import AXIS
from fcjax.model import functions
from fcjax.model.params import LAYER_PARAMS, present
from fcjax.sharded import ops
from fcjax.sharded.operators import INTERVAL_CUTS, TENSOR_PARALLEL_CUTS
from fcjax.sharded.ownership import Plan
from tests import models, nodes

CFG = models.THREE
BOUND = 2e-6
LENGTH = 16
EVERY_N = pytest.mark.parametrize("N", [2, 3, 4, 5, 7])
SIZES = pytest.mark.parametrize("B, T", [(1, 1), (3, 5)])


@pytest.fixture(scope="module")
def params():
    """The parameters of one layer, by their names in the layer."""
    whole = models.random_params(CFG)
    return {name: whole[f"layers.1.{name}"] for name in present(CFG, LAYER_PARAMS)}


@pytest.fixture(scope="module")
def layer():
    return nodes.reference_model(CFG, models.random_params(CFG)).layers[1]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def weights(plan, params, names, cuts=INTERVAL_CUTS):
    """Padded weights and the axis along which each is cut, for `nodes.on_nodes`."""
    pairs = []
    for name in names:
        dims, cut = LAYER_PARAMS[name].dims, cuts[name].dim
        padded = dims if cuts is INTERVAL_CUTS else [d if d == cut else "-" for d in dims]
        x = nodes.pad(plan, "".join(padded), params[name])
        pairs.append((x, dims.index(cut) if cut else None))
    return pairs


def run(plan, params, op, names, x, dims, cut, results, cuts=INTERVAL_CUTS):
    """``op(x, w)`` on the nodes, w being the named parameters."""

    def fn(x, *w):
        return (op(x, dict(zip(names, w, strict=True))),)

    arguments = [(nodes.pad(plan, dims, x), dims.index(cut)), *weights(plan, params, names, cuts)]
    return nodes.on_nodes(plan.nodes, fn, arguments, results)[0]


def check(out, ref, axis):
    """`out` is `ref` and then zeros along the split axis, exactly."""
    true = [slice(None)] * out.ndim
    true[axis] = slice(ref.shape[axis])
    assert nodes.error(out[tuple(true)], ref) < BOUND
    true[axis] = slice(ref.shape[axis], None)
    assert not np.any(out[tuple(true)])


@EVERY_N
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scatter_adds_up_and_deals_out(N, axis):
    shape = [2, 3, 5]
    shape[axis] = 4 * N
    parts = normal(N, *shape)
    (out,) = nodes.on_nodes(N, lambda y: (ops.scatter(y[0], axis),), [(parts, 0)], [axis])
    # In the order of the coordinates: run q of the sum on node q.
    np.testing.assert_allclose(out, parts.sum(axis=0), rtol=0, atol=1e-6)


def test_scatter_gives_node_q_run_q():
    parts = np.ones((3, 6), np.float32) * np.arange(6, dtype=np.float32)

    def fn(y):
        mine = ops.scatter(y[0], 0)
        return (mine[None] + 1000 * jax.lax.axis_index(AXIS).astype(jnp.float32),)

    (out,) = nodes.on_nodes(3, fn, [(parts, 0)], [0])
    np.testing.assert_array_equal(out, [[0, 3], [1006, 1009], [2012, 2015]])


@EVERY_N
@SIZES
def test_rms_norm(N, B, T, params):
    x = normal(B, T, CFG.D) * 30
    op = lambda x, w: ops.rms_norm(x, w["input_norm"], CFG.D, CFG.eps)  # noqa: E731
    out = run(Plan(CFG, N), params, op, ["input_norm"], x, "BTD", "D", [2])
    x64 = x.astype(np.float64)
    exact = x64 / np.sqrt(np.mean(x64**2, axis=-1, keepdims=True) + CFG.eps) * params["input_norm"]
    check(out, exact, 2)


def test_rms_norm_is_that_of_the_whole():
    # Normalised by itself, each shard would be all ones.
    x = np.concatenate([np.full((1, 1, 12), 1), np.full((1, 1, 12), 100)], axis=2)
    arguments = [(x.astype(np.float32), 2), (np.ones(24, np.float32), 0)]
    (out,) = nodes.on_nodes(2, lambda x, w: (ops.rms_norm(x, w, 24, 1e-6),), arguments, [2])
    rms = np.sqrt((1 + 100**2) / 2)
    np.testing.assert_allclose(out, x / rms, rtol=1e-6)


def test_rms_norm_counts_no_padding():
    # Three true coordinates in four slots: divided by 4, every number would be sqrt(4/3) of this.
    x = np.array([[[3, 4, 5, 0]]], np.float32)
    arguments = [(x, 2), (np.array([1, 1, 1, 0], np.float32), 0)]
    (out,) = nodes.on_nodes(2, lambda x, w: (ops.rms_norm(x, w, 3, 0.0),), arguments, [2])
    np.testing.assert_allclose(out, x / np.sqrt(50 / 3), rtol=1e-6)


def test_rms_norm_in_bf16_is_the_reference_bit_for_bit():
    # Integers, so that the sum of squares is the same in any order.
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 9, (3, 5, 64)).astype(np.float32).astype(jnp.bfloat16)
    w = normal(64).astype(jnp.bfloat16)
    arguments = [(x, 2), (w, 0)]
    (out,) = nodes.on_nodes(4, lambda x, w: (ops.rms_norm(x, w, 64, 1e-6),), arguments, [2])
    ref = jax.jit(functions.rms_norm, static_argnums=2)(x, w, 1e-6)
    np.testing.assert_array_equal(out, ref)


@EVERY_N
@SIZES
def test_qkv_proj(N, B, T, params, layer):
    x = normal(B, T, CFG.D)
    op = lambda x, w: ops.qkv_proj(x, w, CFG.D, CFG.eps)  # noqa: E731
    names = ["input_norm", "qkv", "qkv_bias"]
    out = run(Plan(CFG, N), params, op, names, x, "BTD", "D", [2])
    check(out, layer.qkv_proj(x), 2)


@EVERY_N
def test_qkv_bias_is_added_once(N, params):
    zero = params | {"qkv": np.zeros_like(params["qkv"])}
    op = lambda x, w: ops.qkv_proj(x, w, CFG.D, CFG.eps)  # noqa: E731
    names = ["input_norm", "qkv", "qkv_bias"]
    out = run(Plan(CFG, N), zero, op, names, normal(2, 1, CFG.D), "BTD", "D", [2])
    for row in out[:, 0]:
        np.testing.assert_array_equal(row[: CFG.K], params["qkv_bias"])
        np.testing.assert_array_equal(row[CFG.K :], 0)


@EVERY_N
@SIZES
def test_out_proj(N, B, T, params):
    o = normal(B, T, CFG.K, CFG.G, CFG.H)
    out = run(Plan(CFG, N), params, ops.out_proj, ["out"], o, "BTKGH", "K", [2])
    check(out, np.einsum("btkgh,kghd->btd", o.astype(np.float64), params["out"]), 2)


@EVERY_N
@SIZES
def test_mlp(N, B, T, params, layer):
    x = normal(B, T, CFG.D)

    def op(x, w):
        return ops.down_proj(ops.gate_up_proj(x, w, CFG.D, CFG.eps), w)

    out = run(Plan(CFG, N), params, op, ["post_norm", "gate_up", "down"], x, "BTD", "D", [2])
    check(out, layer.mlp(x), 2)


@EVERY_N
def test_gate_up_proj(N, params):
    x = normal(2, 3, CFG.D)
    op = lambda x, w: ops.gate_up_proj(x, w, CFG.D, CFG.eps)  # noqa: E731
    out = run(Plan(CFG, N), params, op, ["post_norm", "gate_up"], x, "BTD", "D", [2])
    normed = functions.rms_norm(x, params["post_norm"], CFG.eps)
    gate, up = np.einsum("btd,dzf->zbtf", normed, params["gate_up"].astype(np.float64))
    check(out, gate / (1 + np.exp(-gate)) * up, 2)


@EVERY_N
def test_down_proj(N, params):
    act = normal(2, 3, CFG.F)
    out = run(Plan(CFG, N), params, ops.down_proj, ["down"], act, "BTF", "F", [2])
    check(out, act.astype(np.float64) @ params["down"], 2)


def run_layer(N, params, x, cache, pos, cuts=INTERVAL_CUTS):
    """A layer on the nodes: on shards, or by tensor parallelism on the complete residual."""
    plan, names = Plan(CFG, N), list(present(CFG, LAYER_PARAMS))
    sharded = cuts is INTERVAL_CUTS

    def fn(pos_B, x, k, v, *w):
        w = dict(zip(names, w, strict=True))
        if sharded:
            x, cache = ops.layer(x, w, (k, v), pos_B, CFG)
        else:
            qkv = ops.tensor_parallel_qkv(x, w, CFG.eps)
            x, cache = ops.tensor_parallel_rest(x, qkv, w, (k, v), pos_B, CFG)
        return x, *cache

    arguments = [
        (np.zeros(x.shape[0], np.int32) + np.int32(pos), None),
        (nodes.pad(plan, "BTD" if sharded else "BT-", x), 2 if sharded else None),
        *((nodes.pad(plan, "BKSH", c), 1) for c in cache),
        *weights(plan, params, names, cuts),
    ]
    return nodes.on_nodes(N, fn, arguments, [2 if sharded else None, 1, 1])


@jax.jit
def reference_layer(layer, x, cache, pos):
    return layer(x, cache, jnp.broadcast_to(jnp.asarray(pos, jnp.int32), x.shape[:1]))


def filled_cache(B, pos):
    """A cache with random numbers in its first slots."""
    shape = (B, CFG.K, LENGTH, CFG.H)
    cache = [normal(*shape, seed=1), normal(*shape, seed=2)]
    for c in cache:
        c[:, :, pos:] = 0
    return cache


@EVERY_N
@pytest.mark.parametrize("B, T, pos", [(1, 1, 0), (3, 5, 0), (1, 5, 7), (3, 1, 15)])
def test_layer(N, B, T, pos, params, layer):
    x, cache = normal(B, T, CFG.D), filled_cache(B, pos)
    out, k, v = run_layer(N, params, x, cache, pos)
    ref, (ref_k, ref_v) = reference_layer(layer, x, cache, pos)
    check(out, ref, 2)
    for mine, theirs, before in zip((k, v), (ref_k, ref_v), cache, strict=True):
        written = slice(pos, pos + T)
        check(mine[:, :, written], theirs[:, :, written], 1)
        rest = np.delete(mine, np.r_[written], axis=2)[:, : CFG.K]
        np.testing.assert_array_equal(rest, np.delete(before, np.r_[written], axis=2))
        assert not np.any(mine[:, CFG.K :])


@EVERY_N
@pytest.mark.parametrize("B, T, pos", [(1, 1, 0), (3, 5, 7)])
def test_tensor_parallel_layer(N, B, T, pos, params, layer):
    x, cache = normal(B, T, CFG.D), filled_cache(B, pos)
    out, k, v = run_layer(N, params, x, cache, pos, TENSOR_PARALLEL_CUTS)
    ref, (ref_k, ref_v) = reference_layer(layer, x, cache, pos)
    assert nodes.error(out, ref) < BOUND
    written = slice(pos, pos + T)
    check(k[:, :, written], ref_k[:, :, written], 1)
    check(v[:, :, written], ref_v[:, :, written], 1)


@EVERY_N
def test_residual_is_added_once(N, params):
    # With projections of zero the layer is the identity; N residuals would be N.
    zero = params | {name: np.zeros_like(params[name]) for name in ("out", "down")}
    x = np.ones((1, 3, CFG.D), np.float32)
    out, *_ = run_layer(N, zero, x, filled_cache(1, 0), 0)
    np.testing.assert_array_equal(out[:, :, : CFG.D], x)
    np.testing.assert_array_equal(out[:, :, CFG.D :], 0)
    out, *_ = run_layer(N, zero, x, filled_cache(1, 0), 0, TENSOR_PARALLEL_CUTS)
    np.testing.assert_array_equal(out, x)


@EVERY_N
def test_layer_with_rows_at_positions_of_their_own(N, params, layer):
    x, pos = normal(3, 2, CFG.D), np.array([7, 0, 14], np.int32)
    cache = [np.array(c) for c in filled_cache(3, LENGTH)]
    out, k, v = run_layer(N, params, x, cache, pos)
    ref, (ref_k, ref_v) = reference_layer(layer, x, cache, pos)
    check(out, ref, 2)
    for mine, theirs, before in zip((k, v), (ref_k, ref_v), cache, strict=True):
        for row, p in enumerate(pos):
            check(mine[row, :, p : p + 2], theirs[row, :, p : p + 2], 0)
            rest = np.delete(mine[row, : CFG.K], np.r_[p : p + 2], axis=1)
            np.testing.assert_array_equal(rest, np.delete(before[row], np.r_[p : p + 2], axis=1))


@EVERY_N
def test_embed(N):
    """Each node's own columns of the rows that the tokens name, bit for bit."""
    table, plan = models.random_params(CFG)["embed"], Plan(CFG, N)
    tokens = np.array([[0, 5, CFG.V - 1], [7, 7, 1]], np.int32)
    fn = lambda tokens, table: (ops.embed(tokens, table),)  # noqa: E731
    arguments = [(tokens, None), (nodes.pad(plan, "VD", table), 1)]
    (x_BTDn,) = nodes.on_nodes(N, fn, arguments, [2])
    np.testing.assert_array_equal(x_BTDn, nodes.pad(plan, "-D", table)[tokens])


@EVERY_N
def test_head(N):
    """Final norm and logits from shards: each node ends with its own words' logits."""
    whole = models.random_params(CFG)
    plan, x = Plan(CFG, N), normal(3, 1, CFG.D)

    def fn(x, table, norm):
        return (ops.head(ops.rms_norm(x, norm, CFG.D, CFG.eps), table),)

    arguments = [
        (nodes.pad(plan, "BTD", x), 2),
        (nodes.pad(plan, "VD", whole["embed"]), 1),
        (nodes.pad(plan, "D", whole["norm"]), 0),
    ]
    (logits,) = nodes.on_nodes(N, fn, arguments, [1])
    ref = nodes.reference_model(CFG, whole).logits(x)[:, 0]
    assert logits.shape == (3, plan.split("V").padded)
    check(logits, ref, 1)


@EVERY_N
def test_own_and_gather_are_inverse(N):
    split, x = Plan(CFG, N).split("D"), normal(2, 3, CFG.D)

    def fn(x):
        mine = ops.own(x, 2, split)
        return mine, ops.gather(mine, 2, split)

    shards, whole = nodes.on_nodes(N, fn, [(x, None)], [2, None])
    assert shards.shape == (2, 3, split.padded)
    for q in range(N):
        run = split.owned(q)
        mine = shards[:, :, q * split.block : (q + 1) * split.block]
        np.testing.assert_array_equal(mine[:, :, : len(run)], x[:, :, run.start : run.stop])
        np.testing.assert_array_equal(mine[:, :, len(run) :], 0)
    np.testing.assert_array_equal(whole, x)
