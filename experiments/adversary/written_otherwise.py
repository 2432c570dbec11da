"""Blocks of a model, a norm and an MLP, written in every way that is honest, and in some more.

On one node: x is its shard [B, Dn], the weights are its blocks, as the roles here say.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcjax.audit import State, Weight, tensor
from fcjax.mesh import AXIS

B, D, F, N = 3, 26, 34, 2
Dn, Fn = D // N, F // N
SUM = functools.partial(jnp.sum, axis=1, keepdims=True)

X = tensor(State, "x", "BD", (B, Dn), "D")
Y = tensor(State, "y", "BD", (B, Dn), "D")
SCALE = tensor(Weight, "scale", "D", (Dn,), "D")
BIAS = tensor(Weight, "bias", "D", (Dn,), "D")
UP = tensor(Weight, "up", "DF", (Dn, F), "D")
DOWN = tensor(Weight, "down", "FD", (Fn, D), "F")
BLOCK = (X, SCALE, UP, DOWN)


def scatter(y, axis=1):
    return lax.psum_scatter(y, AXIS, scatter_dimension=axis, tiled=True)


def rsqrt(mean):
    return lax.rsqrt(mean + 1e-6)


def over_all(y):
    """The sum of a number that each node has for each row."""
    return lax.psum(y, AXIS)


def norm(x, scale):
    return x * rsqrt(over_all(SUM(x * x)) / D) * scale[None]


def block(normed=norm, projected=lambda x, up: scatter(x @ up)):
    """x + down(silu(up(norm(x)))), with another norm or projection."""

    def fn(x, scale, up, down):
        return x + scatter(jax.nn.silu(projected(normed(x, scale), up)) @ down)

    return fn


# The norm's scale, before the scatter or after it.


def scaled(before=lambda y, r: y * r, after=lambda y, r: y, mean=None):
    def fn(x, scale, up, down):
        r = rsqrt(mean(x) if mean else over_all(SUM(x * x)) / D)
        y = after(scatter(before((x * scale[None]) @ up, r)), r)
        return x + scatter(jax.nn.silu(y) @ down)

    return fn


def only(x, which, axis=1):
    """One coordinate, or row, and zeros."""
    number = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    return jnp.where(number == which, x, 0)


def of_node(x):
    return jnp.where(lax.axis_index(AXIS) == 0, x, 0)


# A guard against what is no number.


def guarded(guard):
    def fn(x, scale, up, down):
        whole = block(
            lambda x, scale: guard(norm(guard(x), scale)),
            lambda h, up: scatter(guard(h @ up)),
        )
        return guard(whole(guard(x), scale, up, down))

    return fn


def without_nan(x):
    return jnp.where(jnp.isnan(x), 0, x)


def guarded_by(where):
    """A guard that hides what it likes."""
    return block(projected=lambda h, up: scatter(jnp.where(where(h @ up), 0, h @ up)))


# The norm with a mean.


def layer_norm(
    centre=lambda x, m: x - m, total=SUM, variance=lambda x, m: over_all(SUM((x - m) ** 2)) / D
):
    def fn(x, scale, bias, up, down):
        m = over_all(total(x)) / D
        y = centre(x, m) * rsqrt(variance(x, m)) * scale[None] + bias[None]
        return x + scatter(jax.nn.silu(scatter(y @ up)) @ down)

    return fn


LAYER_NORM = (X, SCALE, BIAS, UP, DOWN)

# A contraction in two halves; two outputs of one weight.

K = 6  # where the first half ends
GATE = tensor(Weight, "gate", "DF", (Dn, F), "D")
GATE_UP = tensor(Weight, "gate_up", "DF", (Dn, 2 * F), "D")
GATE_UP_Z = tensor(Weight, "gate_up", "DZF", (Dn, 2, F), "D")


def summed_in(*halves):
    """The projection as a sum of products over some of the coordinates."""
    return block(projected=lambda h, up: scatter(sum(h[:, a] @ up[b] for a, b in halves)))


def side_by_side(*halves):
    def projected(h, up):
        return scatter(jnp.concatenate([h @ up[:, half] for half in halves], axis=1))

    return block(projected=projected)


def gated(*halves):
    """Gate and up, each with a scatter of its own, taken from one weight."""

    def fn(x, scale, w, down):
        h = norm(x, scale)
        # Twice as large the second time, so that a compiler cannot make one transfer of two.
        gate, up = (scatter((n * h) @ w[:, *half]) for n, half in enumerate(halves, 1))
        return x + scatter((jax.nn.silu(gate) * up) @ down)

    return fn


def gated_by_two(x, scale, gate, up, down):
    h = norm(x, scale)
    return x + scatter((jax.nn.silu(scatter(h @ gate)) * scatter(h @ up)) @ down)


def gated_by_itself(x, scale, w, down):
    """Up is of almost the same state, so that its columns tell the nodes more of gate's."""
    y = scatter(norm(x, scale) @ w[:, :F])
    h = norm(x, scale) + 1e-6 * y[:, :1]
    return x + scatter((y * scatter(h @ w[:, Fn : Fn + F])) @ down)


FIRST, SECOND = slice(0, F), slice(F, 2 * F)

# The norm's statistic in the payload of the scatter.


def folded(slot=lambda x: SUM(x * x), dealt=lambda q: q):
    """Each owner's chunk has one more column: the statistic, the same for all."""

    def projected(x, up):
        y = (x @ up).reshape(B, N, Fn)
        q = dealt(jnp.broadcast_to(slot(x)[:, :, None], (B, N, 1)))
        received = scatter(jnp.concatenate([y, q], axis=2), 1)[:, 0]
        return received[:, :Fn] * rsqrt(received[:, Fn:] / D)

    return block(lambda x, scale: x, projected)


# A square weight, of which no size tells the axes apart.

SQUARE = tensor(Weight, "square", "DD", (Dn, D), 0)
SECOND_SQUARE = tensor(Weight, "second", "DD", (Dn, D), 0)


def squares(back=lambda y: y):
    def fn(x, scale, first, second):
        x = x + back(scatter(norm(x, scale) @ first))
        return x + scatter(norm(x, scale) @ second)

    return fn


# Weights of all layers in one array.

L = 3
STACK = (
    X,
    tensor(Weight, "scale", "LD", (L, Dn), "D"),
    tensor(Weight, "up", "LDF", (L, Dn, F), "D"),
    tensor(Weight, "down", "LFD", (L, Fn, D), "F"),
)


def stacked(index=lambda i, x: i):
    def fn(x, *weights):
        for i in range(L):
            x = block()(x, *(w[index(i, x)] for w in weights))
        return x

    return fn


def scanned(step=lambda x, w: block()(x, *w)):
    def fn(x, *weights):
        return lax.scan(lambda x, w: (step(x, w), None), x, weights)[0]

    return fn


def dealing_again(x, scale, up, down):
    def step(y, w):
        again, y = lax.optimization_barrier((x, y))  # or it would be moved out of the loop
        return y + scatter(jnp.tanh(scatter(again @ up[0])) @ w), None

    return lax.scan(step, x, down)[0]


def while_any_is_positive(x, *weights):
    """As many rounds as the state says."""

    def step(carry):
        i, x = carry
        return i + 1, block()(x, *(w[i] for w in weights))

    going = lambda carry: jnp.logical_and(carry[0] < L, jnp.sum(carry[1]) > 0)  # noqa: E731
    i = lax.pcast(jnp.int32(0), AXIS, to="varying")
    return lax.while_loop(going, step, (i, x))[1]


def gathering(x, w):
    complete = lax.all_gather(x, AXIS, axis=1, tiled=True)
    return block()(x + complete[:, 1 : Dn + 1], *w)


# Weights in integers, with a scale for each column.

INT8 = (
    X,
    SCALE,
    tensor(Weight, "up", "DF", (Dn, F), "D", dtype="s8"),
    tensor(Weight, "down", "FD", (Fn, D), "F", dtype="s8"),
    tensor(Weight, "up's scale", "F", (F,)),
    tensor(Weight, "down's scale", "D", (D,)),
)


def dequantised(before=True, scale_of=lambda s: s):
    def product(h, q, s):
        w, s = q.astype(h.dtype), scale_of(s)[None]
        return h @ (w * s) if before else (h @ w) * s

    def fn(x, scale, up, down, up_scale, down_scale):
        y = jax.nn.silu(scatter(product(norm(x, scale), up, up_scale)))
        return x + scatter(product(y, down, down_scale))

    return fn


def closed_over(x, scale, up, down):
    """The weight is no input but a constant of the program."""
    whole = jnp.asarray(np.random.default_rng(0).normal(size=(D, F)), x.dtype)
    own = lax.dynamic_slice_in_dim(whole, lax.axis_index(AXIS) * Dn, Dn, 0)
    return block()(x, scale, own, down) + 0 * up[:1, :1]
