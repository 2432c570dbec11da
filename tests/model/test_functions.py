"""The shared maths against float64 numpy, straight from the formulas and by explicit indices.

The reference and the operators on shards both use these functions, so parity between them does not
see an error in one. Every comparison also runs on mutants of the functions: it must see each.
"""

import inspect
import types

import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.model import functions
from fcjax.model.config import ModelConfig

# Bounds on the error of a row, relative to its norm: 16 times the rounding of one product in f32,
# and four times that of one number in bf16. A mutant is seen if its error is ten times the bound.
F32, BF16, SEEN = 2**-20, 2**-6, 10
SLOTS = 31  # of a cache


def _case(B, T, K, G, H, D):
    sizes = {"L": 1, "D": D, "K": K, "G": G, "H": H, "F": 1, "V": 1, "max_len": SLOTS}
    return B, T, ModelConfig(**sizes, tied=True, eps=1e-5, rope_theta=1e4)


# The sizes of a case differ, so that no two axes can be taken for each other.
CASES = {
    "groups of heads": _case(B=3, T=5, K=2, G=7, H=22, D=104),
    "one head a group": _case(B=2, T=3, K=5, G=1, H=14, D=52),
    "one token": _case(B=2, T=1, K=3, G=5, H=34, D=17),
    "one row and group": _case(B=1, T=7, K=1, G=3, H=10, D=38),
}


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ragged(B, T):
    """Positions of the rows: from a cache that the new tokens fill up to an empty one."""
    return np.linspace(SLOTS - T, 0, B).astype(np.int32)


def error(out, ref, bound=F32) -> float:
    """Largest error of what stands along the last axis, in units of the bound."""
    out, ref = np.asarray(out, np.float64), np.asarray(ref, np.float64)
    assert out.shape == ref.shape
    norm = np.linalg.norm(ref, axis=-1)
    return float(np.max(np.linalg.norm(out - ref, axis=-1) / norm)) / bound


def project(maths, B, T, cfg):
    """y_ij = sum over m of x_m w_mij."""
    x, w = draw(0, B, T, cfg.D), draw(1, cfg.D, 2, 3)
    y = np.zeros((B, T, 2, 3))
    for b, t, i, j, m in np.ndindex(B, T, 2, 3, cfg.D):
        y[b, t, i, j] += np.float64(x[b, t, m]) * w[m, i, j]
    return error(maths.project(x, w), y)


def out_proj(maths, B, T, cfg):
    """y_d = sum over k, g, h of o_kgh w_kghd."""
    o, w = draw(0, B, T, cfg.K, cfg.G, cfg.H), draw(1, cfg.K, cfg.G, cfg.H, 3)
    y = np.zeros((B, T, 3))
    for b, t, k, g, h in np.ndindex(o.shape):
        y[b, t] += np.float64(o[b, t, k, g, h]) * w[k, g, h]
    return error(maths.out_proj(o, w), y)


def rms_norm(maths, B, T, cfg):
    """y_d = w_d x_d / sqrt(mean x^2 + eps); the mean square of the first row is below eps."""
    x, w = draw(0, B, T, cfg.D), draw(1, cfg.D)
    x[0, 0] *= 1e-3
    y = np.zeros(x.shape)
    for b, t in np.ndindex(B, T):
        mean = sum(np.float64(v) ** 2 for v in x[b, t]) / cfg.D
        y[b, t] = np.float64(x[b, t]) / (mean + cfg.eps) ** 0.5 * w
    return error(maths.rms_norm(x, w, cfg.eps), y)


def rms_norm_in_bf16(maths, B, T, cfg):
    """Rounded before the weight and after it: other orders differ in many a last bit.

    The same order in f64 differs only where f32 falls on the other side of a tie: at most in 1%.
    """
    x, w = draw(0, B, T, cfg.D).astype(jnp.bfloat16), draw(1, cfg.D).astype(jnp.bfloat16)
    wide = x.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + cfg.eps)
    y = (normed.astype(jnp.bfloat16).astype(np.float64) * w.astype(np.float64)).astype(jnp.bfloat16)
    return float(np.mean(np.asarray(maths.rms_norm(x, w, cfg.eps)) != y)) / 0.01


def rotated(x, position, theta):
    """One head: its halves are real and imaginary parts, turned by p / theta^(2h / H)."""
    half = len(x) // 2
    turned = [
        complex(x[h], x[half + h]) * np.exp(1j * int(position) * theta ** (-2 * h / len(x)))
        for h in range(half)
    ]
    return np.array([z.real for z in turned] + [z.imag for z in turned])


def rope(maths, B, T, cfg, dtype=jnp.float32, bound=F32, start=0, theta=1e4):
    x = draw(0, B, T, cfg.K, cfg.G, cfg.H).astype(dtype)
    pos = ragged(B, T) + np.int32(start)
    y = np.zeros(x.shape)
    for b, t, k, g in np.ndindex(x.shape[:-1]):
        y[b, t, k, g] = rotated(x[b, t, k, g].astype(np.float64), pos[b] + t, theta)
    return error(maths.rope(x, pos, theta), y, bound)


def rope_in_bf16(maths, B, T, cfg):
    """A position above 256 is no bf16 number, nor is its angle."""
    return rope(maths, B, T, cfg, jnp.bfloat16, BF16, start=1001)


def rope_far(maths, B, T, cfg):
    """The angles are good to about four roundings of the position in f32: 2^-22 times 32,000."""
    return rope(maths, B, T, cfg, bound=2**-7, start=32_003, theta=1e6)


def attended(q, k, v):
    """One query over the keys and values of its group that it may read: softmax(q.k / sqrt H) v."""
    scores = np.array([q @ key for key in k]) / len(q) ** 0.5
    weights = np.exp(scores - scores.max())
    return sum(w * value for w, value in zip(weights / weights.sum(), v, strict=True))


def attend(maths, B, T, cfg, dtype=jnp.float32, bound=F32):
    """Head (k, g) of token t reads slots 0 to pos + t of group k; what is after them is large."""
    q = draw(0, B, T, cfg.K, cfg.G, cfg.H).astype(dtype)
    k, v = draw(1, B, cfg.K, SLOTS, cfg.H).astype(dtype), draw(2, B, cfg.K, SLOTS, cfg.H)
    v, pos = v.astype(dtype), ragged(B, T)
    for b in range(B):
        k[b, :, pos[b] + T :], v[b, :, pos[b] + T :] = 1000, 1000
    y = np.zeros(q.shape)
    wide_q, wide_k, wide_v = (x.astype(np.float64) for x in (q, k, v))
    for b, t, g, h in np.ndindex(q.shape[:-1]):
        end = pos[b] + t + 1
        y[b, t, g, h] = attended(wide_q[b, t, g, h], wide_k[b, g, :end], wide_v[b, g, :end])
    return error(maths.attend(q, k, v, pos), y, bound)


def attend_in_bf16(maths, B, T, cfg):
    return attend(maths, B, T, cfg, jnp.bfloat16, BF16)


def write_cache(maths, B, T, cfg):
    """Slot pos + t of each row holds token t, rounded; every other slot what it held."""
    worst = 0.0
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        old, new = draw(0, B, cfg.K, SLOTS, cfg.H).astype(dtype), draw(1, B, T, cfg.K, cfg.H)
        y, pos = old.copy(), ragged(B, T)
        for b, t, k in np.ndindex(new.shape[:-1]):
            y[b, k, pos[b] + t] = new[b, t, k].astype(dtype)
        out = maths.write_cache(jnp.asarray(old), new, pos)
        assert out.dtype == dtype
        worst = max(worst, error(out, y))
    return worst


def attention(maths, B, T, cfg, dtype=jnp.float32, bound=F32):
    """Every token of every row from the projections of all tokens up to it, without a cache.

    The function gets the last T of them, and what was before in a cache: keys rotated, rounded to
    its type. In slot C of a group stand G queries, then a key, then a value.
    """
    G, pos = cfg.G, ragged(B, T)
    qkv = draw(0, B, SLOTS, cfg.K, G + 2, cfg.H)
    held = np.zeros((2, B, cfg.K, SLOTS, cfg.H))
    for b, s, k in np.ndindex(B, SLOTS, cfg.K):
        key = rotated(qkv[b, s, k, G].astype(np.float64), s, cfg.rope_theta)
        held[:, b, k, s] = key, qkv[b, s, k, G + 1]
    held = held.astype(dtype)
    new, before, after = np.zeros((B, T, *qkv.shape[2:]), np.float32), held.copy(), held.copy()
    y = np.zeros((B, T, cfg.K, G, cfg.H))
    for b in range(B):
        new[b] = qkv[b, pos[b] : pos[b] + T]
        before[:, b, :, pos[b] :] = 7
        after[:, b, :, pos[b] + T :] = 7
    for b, t, k, g in np.ndindex(y.shape[:-1]):
        end = pos[b] + t + 1
        q = rotated(new[b, t, k, g].astype(np.float64), end - 1, cfg.rope_theta)
        y[b, t, k, g] = attended(q, *held[:, b, k, :end].astype(np.float64))
    out, cache = maths.attention(new, {}, tuple(map(jnp.asarray, before)), pos, cfg)
    assert all(c.dtype == dtype for c in cache)
    return max(error(out, y, bound), error(np.asarray(cache), after, bound))


def attention_with_small_cache(maths, B, T, cfg):
    return max(attention(maths, B, T, cfg, t, BF16) for t in (jnp.bfloat16, jnp.float16))


def with_bias(maths, B, T, cfg):
    """Each head's own bias; without one in the layer nothing is added."""
    x, bias = draw(0, B, T, cfg.K, cfg.C, cfg.H), draw(1, cfg.K, cfg.C, cfg.H)
    y = np.zeros(x.shape)
    for b, t in np.ndindex(B, T):
        y[b, t] = x[b, t].astype(np.float64) + bias
    out = maths.with_bias(x, {"qkv_bias": bias})
    return max(error(out, y), error(maths.with_bias(x, {"down": bias}), x))


def swiglu(maths, B, T, cfg):
    """y = up gate / (1 + exp(-gate))."""
    x = 5 * draw(0, B, T, 2, cfg.D)
    wide = x.astype(np.float64)
    return error(maths.swiglu(x), wide[:, :, 1] * wide[:, :, 0] / (1 + np.exp(-wide[:, :, 0])))


CHECKS = (
    *(project, out_proj, rms_norm, rms_norm_in_bf16, rope, rope_in_bf16, rope_far),
    *(attend, attend_in_bf16, write_cache, attention, attention_with_small_cache),
    *(with_bias, swiglu),
)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_error(check, case):
    assert check(functions, *CASES[case]) <= 1


# For each comparison what stands in the source, and what stands there in a mutant that it must see.
MUTANTS = {
    project: [
        ".sum(axis=0) => [1:].sum(axis=0)",
        ".sum(axis=0) => .mean(axis=0)",
        "x_BTM.reshape(B, T, R, M // R) => x_BTM.reshape(B, T, M // R, R).swapaxes(2, 3)",
    ],
    out_proj: [
        ".sum(axis=0) => [-1]",
        "o_BTKGH.reshape( => o_BTKGH.swapaxes(2, 3).reshape(",
    ],
    rms_norm: [
        "jax.lax.rsqrt(mean_BT1 + eps) => 1 / (jnp.sqrt(mean_BT1) + eps)",
        "mean_BT1 + eps => mean_BT1",
        "jnp.mean( => jnp.sum(",
        "axis=-1 => axis=(1, 2)",
        " * weight_D[None, None] => ",
    ],
    rms_norm_in_bf16: [
        "x_BTD.astype(jnp.float32) => x_BTD",
        "normed_BTD * weight_D[None, None] => "
        "(x32_BTD * jax.lax.rsqrt(mean_BT1 + eps) * weight_D[None, None].astype(float))"
        ".astype(x_BTD.dtype)",
    ],
    rope: [
        "jnp.split(x_BTKGH, 2, axis=-1) => x_BTKGH[..., ::2], x_BTKGH[..., 1::2]",
        "a * cos - b * sin => a * cos + b * sin",
        "a * cos - b * sin, b * cos + a * sin => b * cos + a * sin, a * cos - b * sin",
        "1.0 / theta ** => theta **",
        "/ H) => / (H // 2))",
        "jnp.arange(0, H, 2 => jnp.arange(2, H + 2, 2",
        "+ jnp.arange(T)[None] => + jnp.zeros(T, int)[None]",
        "+ jnp.arange(T)[None] => + jnp.arange(T)[None] + 1",
        "pos_B[:, None] => pos_B[:1, None]",
    ],
    rope_in_bf16: ["_positions(pos_B, T) => _positions(pos_B, T).astype(jnp.bfloat16)"],
    rope_far: ["1.0 / theta => 1.001 / theta"],
    attend: [
        ".astype(jnp.float32) * scale => .astype(jnp.float32)",
        "** -0.5 => ** -1",
        "_positions(pos_B, T)[..., None] => _positions(pos_B, T)[..., None] - 1",
        "_positions(pos_B, T)[..., None] => _positions(pos_B, T)[..., None] + 1",
        "_positions(pos_B, T)[..., None] => pos_B[:, None, None]",
        "_positions(pos_B, T)[..., None] => _positions(pos_B[:1], T)[..., None]",
        "scores_BKGTS, -jnp.inf => scores_BKGTS, 0",
        "softmax(scores_BKGTS, axis=-1) => softmax(scores_BKGTS, axis=2)",
        "S = q_BTKGH.shape[1], k_BKSH.shape[2] => "
        "S = q_BTKGH.shape[1], k_BKSH.shape[2]; B, _, K, G, H = q_BTKGH.shape; "
        "q_BTKGH = q_BTKGH.reshape(B, T, G, K, H).swapaxes(2, 3)",
    ],
    write_cache: [
        "(row, 0, pos_B[row], 0) => (row, 0, pos_B[0], 0)",
        "(row, 0, pos_B[row], 0) => (row, 0, pos_B[row] - 1, 0)",
        "new_BKTH[row : row + 1] => new_BKTH[:1]",
        "range(new_BKTH.shape[0]) => range(1)",
        "new_BTKH.swapaxes(1, 2) => new_BTKH[:, ::-1].swapaxes(1, 2)",
    ],
    attention: [
        "rope(q_BTKGH, pos_B => rope(q_BTKGH, 0 * pos_B",
        "rope(k_BTK1H, pos_B => rope(k_BTK1H, 0 * pos_B",
        "v_BTK1H[..., 0, :] => rope(v_BTK1H, pos_B, cfg.rope_theta)[..., 0, :]",
        "zip(cache, (k_BTKH, v_BTKH) => zip(cache, (v_BTKH, k_BTKH)",
        "(c.astype(q_BTKGH.dtype) for c in cache) => k_BTKH.swapaxes(1, 2), v_BTKH.swapaxes(1, 2)",
        'for name in "qkv" => for name in "qvk"',
    ],
    with_bias: [
        ' + w["qkv_bias"] =>  - w["qkv_bias"]',
        'if "qkv_bias" in w => if not w',
    ],
    swiglu: [
        "jax.nn.silu => jax.nn.gelu",
        "gate_up_BT2F[:, :, 0]) * gate_up_BT2F[:, :, 1] => "
        "gate_up_BT2F[:, :, 1]) * gate_up_BT2F[:, :, 0]",
    ],
}


@pytest.mark.parametrize(
    ("check", "edit"),
    [pytest.param(check, edit, id=edit) for check, edits in MUTANTS.items() for edit in edits],
)
def test_mutants_are_seen(check, edit):
    """A mutant is seen if its error is far above the bound, or no number, in one case at least."""
    old, new = edit.split(" => ")
    source = inspect.getsource(functions)
    assert old in source
    mutant = types.ModuleType("mutant")
    exec(source.replace(old, new), mutant.__dict__)
    assert any(not check(mutant, *case) <= SEEN for case in CASES.values())
