"""The definition of an interval, in numpy, against the unsharded reference and jax's own noise."""

import math

import jax
import numpy as np
import pytest

from fcjax.audit.draws import Draws, Pool
from fcjax.model import reference
from fcjax.sharded.contract import interval_contract
from fcjax.sharded.definition.choice import Choice, above, ordered
from fcjax.sharded.definition.threefry import gumbel
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.ownership import Plan, Split
from fcjax.sharded.sampling import Sampling
from tests import models, nodes

BOUND = 5e-6  # the reference computes in f32
LENGTH = 16
POS = [3, 0, 9]  # of each row

RUNS = {
    # name: model, N, first, depth, batch, tokens
    "2 nodes": ("three", 2, 0, 1, 1, 1),
    "2 nodes, a later layer, 5 tokens": ("gqa", 2, 1, 1, 3, 5),
    "3 nodes, 2 layers": ("untied", 3, 1, 2, 3, 4),
    "5 nodes, Llama": ("llama", 5, 0, 1, 2, 1),
    "2 nodes, Qwen3": ("qwen3", 2, 0, 1, 3, 1),
    "7 nodes, fewer groups than nodes": ("mha", 7, 0, 2, 2, 1),
    "2 nodes, whole": ("three", 2, 0, 3, 3, 1),
    "3 nodes, whole, untied": ("untied", 3, 0, 4, 2, 1),
    "8 nodes, whole, Qwen3": ("qwen3", 8, 0, 3, 2, 1),
    "3 nodes, whole, Llama, prefill": ("llama", 3, 0, 3, 2, 5),
}


def blocks(role, value, N: int) -> list[np.ndarray]:
    """A complete value as the nodes hold it: padded with zeros and, if it is split, cut."""
    value = np.asarray(value)
    ends = [a.size * (N if a.split else 1) for a in role.axes]
    value = np.pad(value, [(0, n - m) for n, m in zip(ends, value.shape, strict=True)])
    value = value.astype(np.float64) if value.dtype == np.float32 else value
    along = next((d for d, a in enumerate(role.axes) if a.split), None)
    return [value] * N if along is None else np.split(value, N, along)


def joined(role, values) -> np.ndarray:
    along = next((d for d, a in enumerate(role.axes) if a.split), None)
    return values[0] if along is None else np.concatenate(values, along)


def drive(steps, transfers: list):
    """Run a definition to its end; the nodes are handed what its collectives mean."""
    answer = None
    while True:
        try:
            moved = steps.send(answer)
        except StopIteration as done:
            return done.value
        transfers.append(moved)
        answer, N = moved.receive(moved.operands), len(moved.operands)
        if moved.kind == "reduce-scatter":
            shapes = zip(moved.operands[0].shape, answer[0].shape, strict=True)
            (along,) = [d for d, (n, m) in enumerate(shapes) if n != m]
            answer = np.split(sum(moved.operands), N, along)
        elif moved.kind == "all-gather":
            answer = [np.concatenate(moved.operands)] * N
        elif moved.operator.endswith("statistic"):
            answer = [sum(moved.operands)] * N


def draws(largest: int = 1) -> Draws:
    rng = np.random.default_rng(0)
    return Draws(rng, Pool(rng, largest), varied=False)


def error(got, want) -> float:
    return np.abs(got - want).max() / np.abs(want).max()


@pytest.mark.parametrize("name", RUNS)
def test_it_is_the_reference(name):
    which, N, first, depth, B, T = RUNS[name]
    cfg, rng = models.ALL[which], np.random.default_rng(1)
    model = ShardedModel(Plan(cfg, N), Interval(first, depth))
    contract = interval_contract(model, B, T, LENGTH)
    definition, roles = contract.definition, contract.signature
    params = models.random_params(cfg)
    tokens, pos = rng.integers(0, cfg.V, (B, T), np.int32), np.array(POS[:B], np.int32)
    cache = jax.tree.map(
        lambda x: rng.standard_normal(x.shape, np.float32), reference.init_cache(cfg, B, LENGTH)
    )
    one = nodes.reference_model(cfg, params)
    residuals, qkv, logits, kept = nodes.run_reference(one, tokens, cache, pos)

    values = {"tokens": tokens, "pos": pos, "residual": residuals[first], **params}
    for i, (k, v) in enumerate(cache):
        values |= {f"layers.{i}.cache_k": k, f"layers.{i}.cache_v": v}
    given = {r.name: blocks(r, values[r.name], N) for r in roles.parameters}
    transfers = []
    results = drive(definition.run(given, draws(), lambda x, otherwise=None: x), transfers)

    end = first + depth
    want = {"residual": residuals[end], "complete residual": residuals[end]}
    if model.whole:
        want |= {"logits": logits[:, -1], "next_tokens": logits[:, -1].argmax(-1)[:, None]}
    else:
        want |= {f"layers.{end}.q, k, v": qkv[end], "complete qkv": qkv[end]}
    for i in model.interval.layers:
        k, v = kept[i]
        want |= {f"layers.{i}.cache_k": k, f"layers.{i}.cache_v": v}
    assert len(results) == len(roles.results)
    for role, result in zip(roles.results, results, strict=True):
        got, theirs = joined(role, result.values), np.asarray(want[role.name])
        inside = got[tuple(slice(n) for n in theirs.shape)]
        assert error(inside, theirs) < BOUND, role.name
        assert np.abs(got).sum() == pytest.approx(np.abs(inside).sum()), role.name  # zero padding
    listed = [e.kind.opcode for e in contract.inside]
    assert [t.kind for t in transfers] == listed + ["all-gather"] * (not model.whole)


def test_the_sizes_of_its_transfers_are_those_of_the_contract():
    model = ShardedModel(Plan(models.GQA, 3), Interval(0, 3), Sampling(0.7, 20, 0.9))
    contract = interval_contract(model, 2, 1, LENGTH)
    roles = contract.signature.parameters
    given = contract.definition.draw(roles, draws(max(math.prod(r.shape) for r in roles)))
    transfers = []
    drive(contract.definition.run(given, draws(), lambda x, otherwise=None: x), transfers)
    listed = [(e.kind.opcode, e.sent) for e in contract.inside]
    assert [(t.kind, t.operands[0].size) for t in transfers] == listed


@pytest.mark.parametrize("number", [0, 5, 123456])
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_the_noise_is_that_of_jax(seed, number):
    key = jax.random.fold_in(jax.random.key(seed), number)
    want = jax.random.gumbel(key, (1000,))
    np.testing.assert_allclose(gumbel(seed, number, 1000), want, rtol=2e-6, atol=1e-6)


RULES = {
    "greedy": Sampling(),
    "temperature": Sampling(0.9),
    "top-k": Sampling(1.0, 5),
    "top-p": Sampling(1.0, 0, 0.6),
    "all": Sampling(0.7, 20, 0.9, 1.3),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("N", [2, 3])
def test_the_choice_is_that_of_the_programs(name, N):
    sampling, V, B = RULES[name], 67, 40
    split, rng = Split("V", V, N), np.random.default_rng(3)
    logits = np.zeros((B, split.padded), np.float32)
    logits[:, :V] = 3 * rng.standard_normal((B, V))
    logits[0, 5] = logits[0, 50] = 99  # a tie
    logits[1, 7] = np.nan
    seen = np.pad(rng.random((B, V)) < 0.5, ((0, 0), (0, split.padded - V)))
    pos, seed = rng.integers(0, 99, B).astype(np.int32), np.uint32(7)

    def real(logits_BVn, pos_B, seed, seen_BVn):
        return sampling.choose(logits_BVn, split, pos_B, seed, seen_BVn)

    (want,) = nodes.on_nodes(
        N, lambda *a: (real(*a),), [(logits, 1), (pos, None), (seed, None), (seen, 1)], [None]
    )
    each = [np.split(x, N, 1) for x in (logits.astype(np.float64), seen)]
    rules = Choice(sampling, split, draws(), lambda x, otherwise=None: x)
    got = drive(rules.run(each[0], pos, seed, each[1]), [])
    np.testing.assert_array_equal(got[0][:, 0], want)
    assert len(set(want)) > 5


def test_the_order_of_floats_is_that_of_their_bits():
    x = np.array([-np.inf, -2.5, -1e-40, 0.0, 1e-40, 1.0, 3e38, np.inf])
    assert list(np.argsort(ordered(x))) == list(range(len(x)))
    assert ordered(np.array([-0.0])) == ordered(np.array([0.0]))


def test_weights_above_candidates():
    keys = np.array([[5, 1, 9, 5]], np.uint32)
    weights = np.array([[1.0, 2.0, 4.0, 8.0]])
    candidates = np.array([[0, 1, 5, 6, 10]], np.uint32)
    np.testing.assert_array_equal(above(keys, weights, candidates), [[15, 15, 13, 4, 0]])
