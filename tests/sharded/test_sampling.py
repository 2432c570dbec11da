"""The choice of a token from split logits: any number of nodes, the sets of transformers, draws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from fcjax.mesh import AXIS, make_mesh
from fcjax.sharded import sampling
from fcjax.sharded.ownership import Split
from fcjax.sharded.sampling import Sampling

V = 67  # no multiple of 2, 3 or 5
INF, NAN = np.inf, np.nan


@functools.cache
def program(N: int, rule: Sampling, size: int, own_noise):
    """`choose` on N nodes; the noise is part of it so that no two are mixed up."""
    split = Split("V", size, N)
    spec = jax.P(None, AXIS)

    def fn(logits_BVn, pos_B, seed, seen_BVn):
        return rule.choose(logits_BVn, split, pos_B, seed, seen_BVn)

    specs = {"in_specs": (spec, jax.P(), jax.P(), spec), "out_specs": jax.P()}
    mesh = make_mesh(N)
    return jax.NamedSharding(mesh, spec), jax.jit(jax.shard_map(fn, mesh=mesh, **specs))


def choose(N, rule: Sampling, logits_BV, seed=0, pos_B=None, seen_BV=None) -> np.ndarray:
    """The chosen ids [B] on N nodes; the padding of the last one is as good as it gets."""
    logits_BV = np.asarray(logits_BV, np.float32)
    size = logits_BV.shape[1]
    padding = ((0, 0), (0, Split("V", size, N).padded - size))
    padded = np.pad(logits_BV, padding, constant_values=1e30)
    pos_B = np.zeros(len(logits_BV), np.int32) if pos_B is None else np.asarray(pos_B, np.int32)
    sharding, run = program(N, rule, size, sampling._own_noise)
    seen_BV = np.zeros(logits_BV.shape, bool) if seen_BV is None else seen_BV
    padded, seen_BV = (jax.device_put(x, sharding) for x in (padded, np.pad(seen_BV, padding)))
    return jax.device_get(run(padded, pos_B, np.uint32(seed), seen_BV))


def noise_for_one(seed, pos_B, split, start):
    """For each row, 1e20 for the token whose id is the row's position, 0 for all others."""
    ids_BVn = jax.lax.broadcasted_iota("int32", (len(pos_B), split.block), 1) + start
    return jnp.where(ids_BVn == pos_B[:, None], np.float32(1e20), np.float32(0))


def kept(N, rule: Sampling, logits_V, monkeypatch) -> set[int]:
    """The ids that may be drawn: those that are when the noise is as high as can be for them."""
    size = len(logits_V)

    monkeypatch.setattr(sampling, "_own_noise", noise_for_one)
    chosen_B = choose(N, rule, np.tile(logits_V, (size, 1)), pos_B=np.arange(size))
    return {i for i in range(size) if chosen_B[i] == i}


def kept_by_transformers(rule: Sampling, logits_V) -> set[int]:
    scores = torch.asarray(np.asarray(logits_V, np.float32))[None]
    scores = TemperatureLogitsWarper(rule.temperature)(None, scores)
    if rule.top_k:
        scores = TopKLogitsWarper(rule.top_k)(None, scores)
    if rule.top_p < 1:
        scores = TopPLogitsWarper(rule.top_p)(None, scores)
    return set(np.flatnonzero(np.isfinite(scores[0].numpy())).tolist())


@pytest.mark.parametrize(
    ("N", "rule"),
    [
        (2, Sampling(1.0, 5)),
        (3, Sampling(1.0, V + 1)),
        (2, Sampling(0.6, 0, 0.97)),
        (5, Sampling(1.0, 0, 0.3)),
        (3, Sampling(1.7, 20, 0.8)),
        (5, Sampling(1.7, 20, 0.8)),
    ],
    ids=str,
)
def test_the_tokens_kept_are_those_of_transformers(N, rule, monkeypatch):
    logits_V = 3 * np.random.default_rng(N).standard_normal(V)
    expected = kept_by_transformers(rule, logits_V)
    assert 0 < len(expected) <= V
    assert kept(N, rule, logits_V, monkeypatch) == expected


# Logits of 11 tokens, in runs of 6 and 5, of 4, 4 and 3, or of 3, 3, 3 and 2 (and none).
EDGES = [
    [0, 1, 2, 3, 2, 1, 5, 5, 0, -1, -2],  # a tie of the largest two
    [2, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2],  # ties on different nodes
    [1] * 11,
    [-INF] * 11,
    [-INF] * 10 + [0],
    [INF] + [0] * 10,
    [0] * 5 + [INF] * 3 + [0] * 3,
    [-0.0] * 5 + [0.0] * 6,  # equal
    [-1] * 5 + [0.0] + [-0.0] * 5,
    [1e38, 3e38] + [-3e38] * 9,
    [1e-40] + [0] * 10,
    [NAN] + [0] * 10,
    [3] * 10 + [NAN],
    [NAN] * 11,
]
GREEDY = [6, 0, 0, 0, 10, 0, 5, 0, 5, 1, 0, 1, 0, 11]


@pytest.mark.parametrize("N", [2, 3, 4])
def test_the_largest_logit_and_of_equal_ones_the_lowest_id(N):
    np.testing.assert_array_equal(choose(N, Sampling(), EDGES), GREEDY)


@pytest.mark.parametrize(
    "rule", [Sampling(1e-6, 4, 0.5), Sampling(1e-40), Sampling(5e-324, 4, 0.5)], ids=str
)
def test_draws_at_a_very_low_temperature_are_among_the_largest(rule):
    rows = [row for row in EDGES if 1e-40 not in row]  # so near to 0 is not far away at 1e-6
    chosen_B = choose(3, rule, rows, seed=3)
    for row, token in zip(rows, chosen_B, strict=True):
        numbers = [x for x in row if not np.isnan(x)]
        assert row[token] == max(numbers) if numbers else token == len(row)


@pytest.mark.parametrize(
    "rule",
    [
        Sampling(1e30),
        Sampling(1.3, 9, 0.9),
    ],
    ids=str,
)
def test_draws_do_not_depend_on_the_number_of_nodes(rule):
    rng = np.random.default_rng(0)
    logits_BV = [*EDGES, *(4 * rng.standard_normal((20, 11)))]
    pos_B = np.arange(len(logits_BV))
    two, five = (choose(N, rule, logits_BV, 7, pos_B) for N in (2, 5))
    np.testing.assert_array_equal(two, five)
    for row, token in zip(logits_BV, two, strict=True):
        assert (token == 11) if np.isnan(row).all() else not np.isnan(row[token])


def test_the_kth_largest_and_all_equal_to_it_are_kept(monkeypatch):
    row = [5, 3, 3, 1, 0, 3, 4, 3, -1, -1, -2]
    for k, ids in (1, {0}), (3, {0, 6, 1, 2, 5, 7}):
        assert kept(3, Sampling(1.0, k), row, monkeypatch) == ids
        assert kept_by_transformers(Sampling(1.0, k), row) == ids
    zeros = [0.0, -0.0, -1, -0.0, 0.0, *[-1] * 6]
    assert kept(3, Sampling(1.0, 1), zeros, monkeypatch) == {0, 1, 3, 4}
    few = [-INF] * 8 + [2.0, 1.0, 0.0]
    assert kept(3, Sampling(1.0, 3), few, monkeypatch) == {8, 9, 10}
    none = [NAN, NAN, 2.0, 1.0, *[NAN] * 7]
    assert kept(3, Sampling(1.0, 1), none, monkeypatch) == {2}
    assert kept(3, Sampling(1.0, 3), none, monkeypatch) == {2, 3}


def test_the_fewest_tokens_with_the_mass_are_kept(monkeypatch):
    row = np.log([0.5, 0.25, 0.125, 0.0625, 0.0625])
    for p, ids in (1e-46, {0}), (0.51, {0, 1}), (0.88, {0, 1, 2, 3, 4}):
        assert kept(3, Sampling(1.0, 0, p), row, monkeypatch) == ids
    assert kept(3, Sampling(1.0, 0, 0.51), [1.0] * 5, monkeypatch) == set(range(5))  # all are tied
    # Top-p looks at what top-k has left: 2/3 of the mass is then the first token's.
    assert kept(3, Sampling(1.0, 2, 0.51), row, monkeypatch) == {0}


@pytest.mark.parametrize("rule", [Sampling(1.0), Sampling(2.0, 6, 0.9)], ids=str)
def test_draws_have_the_probabilities_of_the_softmax(rule):
    draws = 4000
    logits_V = np.array([1.0, 0.3, -0.5, 0.0, 2.0, 1.2, -3.0])
    probabilities_V = np.exp(logits_V / rule.temperature)
    out = set(range(7)) - kept_by_transformers(rule, logits_V)
    probabilities_V[list(out)] = 0
    probabilities_V /= probabilities_V.sum()
    # A row for each position, as a long text would draw them.
    chosen_B = choose(3, rule, np.tile(logits_V, (draws, 1)), 5, np.arange(draws))
    counts_V = np.bincount(chosen_B, minlength=7)
    assert not counts_V[list(out)].any() and counts_V.size == 7
    inside = probabilities_V > 0
    expected = draws * probabilities_V[inside]
    chi2 = ((counts_V[inside] - expected) ** 2 / expected).sum()
    freedom = inside.sum() - 1
    assert chi2 < freedom + 5 * np.sqrt(2 * freedom)


def test_tokens_that_are_there_already_are_penalised_as_in_transformers():
    rng = np.random.default_rng(1)
    logits_BV = 2 * rng.standard_normal((200, 11)).astype(np.float32)
    seen_BV = rng.random((200, 11)) < 0.5
    chosen_B = choose(3, Sampling(repetition_penalty=1.7), logits_BV, seen_BV=seen_BV)
    penalise = RepetitionPenaltyLogitsProcessor(1.7)
    for i, (row, seen) in enumerate(zip(logits_BV, seen_BV, strict=True)):
        ids = torch.asarray(np.flatnonzero(seen))[None]
        assert chosen_B[i] == int(penalise(ids, torch.asarray(row)[None]).argmax())
    plain_B = choose(3, Sampling(), logits_BV, seen_BV=seen_BV)
    np.testing.assert_array_equal(plain_B, logits_BV.argmax(1))
    assert 20 < (chosen_B != plain_B).sum() < 180


def test_a_draw_depends_on_the_seed_and_the_position_only():
    logits_BV = np.tile(np.linspace(0, 1, 11), (300, 1))
    pos_B = np.arange(300)
    first = choose(2, Sampling(1.0), logits_BV, 1, pos_B)
    np.testing.assert_array_equal(first, choose(2, Sampling(1.0), logits_BV, 1, pos_B))
    backwards = choose(2, Sampling(1.0), logits_BV, 1, pos_B[::-1])
    np.testing.assert_array_equal(first, backwards[::-1])
    other = choose(2, Sampling(1.0), logits_BV, 2, pos_B)
    # Two independent draws agree in 1 of 11 or a little more.
    assert (first == other).mean() < 0.25
    assert (first[1:] == first[:-1]).mean() < 0.25


def test_padding_is_never_chosen():
    logits_BV = np.full((50, 5), -1e3)
    for rule in Sampling(), Sampling(1e30), Sampling(1.0, 9, 1 - 1e-9):
        assert choose(3, rule, logits_BV, 0, np.arange(50)).max() < 5


def test_what_crosses_is_listed():
    assert [e.name for e in Sampling().exchanges] == ["best value", "chosen token"]
    assert Sampling(0.0, 5, 0.5).exchanges == Sampling().exchanges
    names = [e.name for e in Sampling(1.0, 5, 0.5).exchanges]
    assert names.count("top-k count") == names.count("top-p mass") == 8
    assert names[-2:] == ["best value", "chosen token"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temperature": -0.1}, "temperature: expected 0 to 1e+30, got -0.1"),
        ({"temperature": NAN}, "temperature: expected 0 to 1e+30, got nan"),
        ({"temperature": INF}, "temperature: expected 0 to 1e+30, got inf"),
        ({"top_k": -1}, "top_k: expected 0 (all tokens) or more, got -1"),
        ({"repetition_penalty": 0}, "repetition_penalty: expected more than 0, got 0"),
        ({"repetition_penalty": INF}, "repetition_penalty: expected more than 0, got inf"),
        ({"top_p": 0}, "top_p: expected more than 0 and at most 1, got 0"),
        ({"top_p": 1.1}, "top_p: expected more than 0 and at most 1, got 1.1"),
        ({"top_p": NAN}, "top_p: expected more than 0 and at most 1, got nan"),
    ],
)
def test_values_that_mean_nothing_are_refused(values, words):
    with pytest.raises(ValueError) as e:
        Sampling(**values)
    assert str(e.value) == words
