"""The parity figure by hand, and the oracle against the reference."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.decode import parity
from fcjax.model import checkpoint, reference
from fcjax.sharded.interval import Interval
from tests import models, nodes


def test_row_error_by_hand():
    ref = np.array([[3.0, 4.0], [0.0, 10.0]])
    out = np.array([[3.0, 4.5], [0.1, 10.0]])
    assert parity.row_error(out, ref) == pytest.approx(0.1)  # 0.5 / 5, not 0.1 / 10
    assert parity.row_error(ref, ref) == 0


def test_row_error_is_by_row():
    """A small row that is all wrong is not hidden by a large one that is right."""
    ref = np.array([[1e6, 1e6], [1e-3, 0]])
    out = np.array([[1e6, 1e6], [0, 1e-3]])
    assert parity.row_error(out, ref) == pytest.approx(np.sqrt(2))


def test_row_error_is_computed_in_f64():
    ref = np.full((1, 4), 1e30, np.float32)  # their squares are no f32
    assert parity.row_error(ref * np.float32(1.5), ref) == pytest.approx(0.5)


def test_a_row_of_zeros_must_be_met_exactly():
    zero = np.zeros((1, 3))
    assert parity.row_error(zero, zero) == 0
    assert parity.row_error(zero + 1e3, zero) == np.inf
    assert parity.row_error(zero + 1e-45, zero) == np.inf


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_infinitely_wrong(wrong):
    ref = np.ones((3, 2))
    out = ref.copy()
    out[1, 1] = wrong
    assert parity.row_error(out, ref) == np.inf
    assert parity.row_error(ref, out) == np.inf
    assert parity.row_error(out, out) == np.inf
    assert max([parity.row_error(ref, ref), parity.row_error(out, ref)]) == np.inf


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"parity: expected shape \(1, 3\), got \(3, 1\)"):
        parity.row_error(np.zeros((3, 1)), np.zeros((1, 3)))


CFG = dataclasses.replace(models.THREE, D=5, K=2, G=3, H=4, V=7)


def values(B=2, T=3):
    rng, (D, K, G, H, V) = np.random.default_rng(0), map(CFG.size, "DKGHV")
    return {
        "residual": rng.standard_normal((B, T, D)),
        "qkv": rng.standard_normal((B, T, K, G + 2, H)),
        "logits": rng.standard_normal((B, V)),
    }


def test_compare_names_what_is_wrong():
    """Each of the five figures moves with its own numbers alone."""
    right = values()
    assert parity.compare(CFG, right, right) == dict.fromkeys(
        ("residual", "q", "k", "v", "logits"), 0
    )
    places = {
        "residual": ("residual", (1, 2, 4)),
        "q": ("qkv", (1, 2, 1, 2, 3)),
        "k": ("qkv", (1, 2, 1, 3, 3)),
        "v": ("qkv", (1, 2, 1, 4, 3)),
        "logits": ("logits", (1, 6)),
    }
    for name, (value, place) in places.items():
        wrong = {n: x.copy() for n, x in right.items()}
        wrong[value][place] += 1
        figures = parity.compare(CFG, wrong, right)
        assert {n for n, error in figures.items() if error} == {name}


def test_compare_has_a_row_for_each_token():
    """One token of ten wrong shows as large as if it were the only one."""
    right = values(B=1, T=10)
    wrong = {n: x.copy() for n, x in right.items()}
    wrong["residual"][0, 7] *= 2
    assert parity.compare(CFG, wrong, right)["residual"] == pytest.approx(1)


def test_compare_leaves_out_what_is_nobodys():
    right = values(B=2, T=3)
    wrong = {n: x.copy() for n, x in right.items()}
    wrong["residual"][1, 2] *= 2
    wrong["qkv"][0, 1] *= 2
    own = np.array([[True, False, True], [True, True, False]])
    assert set(parity.compare(CFG, wrong, right, own).values()) == {0}
    assert parity.compare(CFG, wrong, right, ~own)["residual"] == pytest.approx(1)
    assert parity.compare(CFG, wrong, right, ~own)["logits"] == 0


@pytest.mark.parametrize("first, depth", [(0, 1), (1, 2), (0, 4)])
def test_oracle(tmp_path, first, depth):
    cfg, end = models.UNTIED, first + depth
    source = checkpoint.open_folder(models.write_folder(tmp_path, cfg))
    oracle = parity.Oracle(source, Interval(first, depth), batch=2, length=8)
    model = nodes.reference_model(cfg, models.random_params(cfg))
    cache, pos = reference.init_cache(cfg, 2, 8), np.array([0, 1], np.int32)
    for T in 4, 1, 1:
        tokens = np.random.default_rng(T).integers(0, cfg.V, (2, T))
        residuals, qkv, logits, cache = nodes.run_reference(
            model, jnp.asarray(tokens, jnp.int32), cache, pos
        )
        pos = pos + T

        right = {"residual": residuals[end]}
        wrong = {"residual": residuals[end - 1]}
        if end < cfg.L:
            right["qkv"], wrong["qkv"] = qkv[end], qkv[end - 1]
        if T == 1:
            right["logits"] = wrong["logits"] = logits[:, -1]
        found = oracle.step(tokens, pos - T)
        assert found.keys() == right.keys()
        assert max(parity.compare(cfg, found, jax.device_get(right)).values()) < 1e-6
        # Another layer's values are far off.
        other = parity.compare(cfg, jax.device_get(wrong), jax.device_get(right))
        assert other["residual"] > 0.01 and other.get("q", 1) > 0.01
        assert other.get("logits", 0) == 0
