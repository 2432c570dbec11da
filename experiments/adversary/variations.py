"""Honest programs that differ from the project's own, and a dishonest neighbour of each.

Small blocks with a norm and an MLP, written for `certify` with shapes alone. VARIATIONS maps a name
to (function on a node, its inputs, its result); NEIGHBOURS to (reason code, function, inputs,
result). `program` makes of these what `certify` takes.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcjax.audit import State, Weight, signature, tensor
from fcjax.mesh import AXIS, make_mesh

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


def program(fn, inputs, result):
    """The function over the nodes, the shapes of its arguments, and its roles."""
    mesh = make_mesh(N)
    arguments = [
        jax.ShapeDtypeStruct(
            tuple(a.size * N if a.split else a.size for a in role.axes),
            jnp.int8 if role.dtype == "s8" else jnp.float32,
            sharding=jax.NamedSharding(mesh, _spec(role)),
        )
        for role in inputs
    ]
    specs = tuple(map(_spec, inputs))
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=_spec(result))
    return mapped, arguments, signature(N, inputs, result)


def _spec(role):
    return jax.P(*(AXIS if a.split else None for a in role.axes))


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


def _only(x, which, axis=1):
    """One coordinate, or row, and zeros."""
    number = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    return jnp.where(number == which, x, 0)


def _of_node(x):
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


def _without_nan(x):
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


def _gathering(x, w):
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


VARIATIONS = {
    "the plain block": (block(), BLOCK, Y),
    "scale before the scatter": (scaled(), BLOCK, Y),
    "scale after the scatter": (
        scaled(before=lambda y, r: y, after=lambda y, r: y * r), BLOCK, Y,
    ),
    "statistic / D, then summed": (
        scaled(mean=lambda x: over_all(SUM(x * x) / D)), BLOCK, Y,
    ),
    "squares / D, then summed": (
        scaled(mean=lambda x: over_all(SUM(x * x / D))), BLOCK, Y,
    ),
    "mean of means": (
        scaled(mean=lambda x: lax.pmean(jnp.mean(x * x, 1, keepdims=True), AXIS)), BLOCK, Y,
    ),
    "NaN guard": (guarded(_without_nan), BLOCK, Y),
    "NaN guard, nan_to_num": (guarded(jnp.nan_to_num), BLOCK, Y),
    "NaN guard, isfinite": (guarded(lambda x: jnp.where(jnp.isfinite(x), x, 0)), BLOCK, Y),
    "LayerNorm": (layer_norm(), LAYER_NORM, Y),
    "LayerNorm, mean of squares less square of mean": (
        layer_norm(variance=lambda x, m: over_all(SUM(x * x)) / D - m * m), LAYER_NORM, Y,
    ),
    "contraction as a sum of two": (
        summed_in(*[(slice(0, K), slice(0, K)), (slice(K, Dn), slice(K, Dn))]), BLOCK, Y,
    ),
    "contraction as a sum of three": (
        summed_in(*[(slice(a, b), slice(a, b)) for a, b in ((0, 4), (4, 9), (9, Dn))]), BLOCK, Y,
    ),
    "contraction as two side by side": (side_by_side(slice(0, 10), slice(10, F)), BLOCK, Y),
    "gate and up as two scatters": (gated_by_two, (X, SCALE, GATE, UP, DOWN), Y),
    "gate and up as two scatters of one weight": (
        gated((FIRST,), (SECOND,)), (X, SCALE, GATE_UP, DOWN), Y,
    ),
    "gate and up as two scatters of one weight, stacked": (
        gated((0,), (1,)), (X, SCALE, GATE_UP_Z, DOWN), Y,
    ),
    "the statistic in the scatter's payload": (folded(), BLOCK, Y),
    "square weights": (squares(), (X, SCALE, SQUARE, SECOND_SQUARE), Y),
    "stacked weights": (stacked(), STACK, Y),
    "a scan over layers": (scanned(), STACK, Y),
    "int8 weights": (dequantised(), INT8, Y),
    "int8 weights, scaled after the product": (dequantised(before=False), INT8, Y),
}  # fmt: skip

NEIGHBOURS = {
    "scale is a mask of coordinates": (
        "hidden-gather", scaled(lambda y, r: _only(y * r, 5)), BLOCK, Y,
    ),
    "scale is a mask of rows": (
        "hidden-gather", scaled(lambda y, r: y * _only(r, 1, axis=0)), BLOCK, Y,
    ),
    "scale is a mask of nodes": ("hidden-gather", scaled(lambda y, r: y * _of_node(r)), BLOCK, Y),
    "scale is a mask of nodes, after all that": (
        "hidden-gather", scaled(lambda y, r: _of_node(y * r)), BLOCK, Y,
    ),
    "scale with its rows turned": (
        "hidden-gather", scaled(lambda y, r: y * r[::-1]), BLOCK, Y,
    ),
    "statistic / D of one coordinate": (
        "not-a-statistic", scaled(mean=lambda x: over_all(SUM(_only(x, 5) ** 2) / D)), BLOCK, Y,
    ),
    "statistic / D of one node": (
        "not-a-statistic", scaled(mean=lambda x: over_all(_of_node(SUM(x * x) / D))), BLOCK, Y,
    ),
    "squares divided by their positions": (
        "not-a-statistic",
        scaled(mean=lambda x: over_all(SUM(x * x / jnp.arange(1.0, Dn + 1.0)[None]))), BLOCK, Y,
    ),
    "NaN guard is a mask by position": (
        "hidden-gather", guarded_by(lambda y: jnp.arange(F)[None] != 5), BLOCK, Y,
    ),
    "NaN guard hides what is positive": ("hidden-gather", guarded_by(lambda y: y > 0), BLOCK, Y),
    "NaN guard of what was made NaN by position": (
        "hidden-gather",
        block(projected=lambda h, up: scatter(
            _without_nan(jnp.where(jnp.arange(F)[None] == 5, h @ up, jnp.nan)))), BLOCK, Y,
    ),
    "NaN guard that says where something else is NaN": (
        "hidden-gather",
        guarded_by(lambda y: jnp.isnan(jnp.where(jnp.arange(F)[None] == 5, y, jnp.nan))), BLOCK, Y,
    ),
    "mean is one coordinate": (
        "not-a-statistic", layer_norm(total=lambda x: SUM(_only(x, 5))), LAYER_NORM, Y,
    ),
    "mean is a slice": ("not-a-statistic", layer_norm(total=lambda x: x[:, 5:6]), LAYER_NORM, Y),
    "mean is of one node": (
        "not-a-statistic", layer_norm(total=lambda x: _of_node(SUM(x))), LAYER_NORM, Y,
    ),
    "variance about one coordinate": (
        "not-a-statistic",
        layer_norm(variance=lambda x, m: over_all(SUM((x - x[:, :1]) ** 2))), LAYER_NORM, Y,
    ),
    "a third statistic": (
        "not-a-statistic",
        layer_norm(centre=lambda x, m: x - over_all(SUM((x - m) ** 3)) / D), LAYER_NORM, Y,
    ),
    "the same statistic twice": (
        "not-a-statistic",
        layer_norm(centre=lambda x, m: x - m + over_all(SUM((x + m) ** 2))), LAYER_NORM, Y,
    ),
    "only half of a contraction": (
        "partial-contraction", summed_in((slice(0, K), slice(0, K))), BLOCK, Y,
    ),
    "one coordinate of a contraction": (
        "partial-contraction", summed_in((slice(5, 6), slice(5, 6))), BLOCK, Y,
    ),
    "halves of a contraction crossed": (
        "hidden-gather", summed_in((slice(0, K), slice(K, 2 * K)), (slice(K, 2 * K), slice(0, K))),
        BLOCK, Y,
    ),
    "halves side by side in another order": (
        "hidden-gather", side_by_side(slice(Fn, F), slice(0, Fn)), BLOCK, Y,
    ),
    "the same half twice, side by side": (
        "hidden-gather", side_by_side(slice(0, Fn), slice(0, Fn)), BLOCK, Y,
    ),
    "the two scatters carry the same half": (
        "unplanned-collective", gated((FIRST,), (FIRST,)), (X, SCALE, GATE_UP, DOWN), Y,
    ),
    "the two scatters carry halves that overlap": (
        "unplanned-collective", gated((FIRST,), (slice(Fn, Fn + F),)), (X, SCALE, GATE_UP, DOWN), Y,
    ),
    "the statistic's slot carries a coordinate": (
        "hidden-gather", folded(lambda x: x[:, 5:6]), BLOCK, Y,
    ),
    "the statistic's slot carries a coordinate's square": (
        "hidden-gather", folded(lambda x: SUM(_only(x, 5) ** 2)), BLOCK, Y,
    ),
    "the statistic's slot carries one node's": (
        "hidden-gather", folded(lambda x: _of_node(SUM(x * x))), BLOCK, Y,
    ),
    "the statistic's slot is another for each owner": (
        "hidden-gather", folded(dealt=lambda q: _only(q, 1)), BLOCK, Y,
    ),
    "square weights, shard turned": (
        "hidden-gather", squares(lambda y: y[:, ::-1]), (X, SCALE, SQUARE, SECOND_SQUARE), Y,
    ),
    "stacked weights, index by the state": (
        "hidden-gather", stacked(lambda i, x: jnp.argmax(x[0, :L])), STACK, Y,
    ),
    "stacked weights, index by the node": (
        "not-a-weight", stacked(lambda i, x: lax.axis_index(AXIS)), STACK, Y,
    ),
    "a scan that gathers": ("control-flow", scanned(_gathering), STACK, Y),
    "a scan that deals out the same state": ("unplanned-collective", dealing_again, STACK, Y),
    "as many rounds as the state says": ("control-flow", while_any_is_positive, STACK, Y),
    "int8 weights, the scale is a mask": (
        "not-a-weight", dequantised(scale_of=lambda s: _only(s, 5, axis=0)), INT8, Y,
    ),
    "int8 weights, the scale after the product is a mask": (
        "hidden-gather", dequantised(False, lambda s: _only(s, 5, axis=0)), INT8, Y,
    ),
}  # fmt: skip

# Honest, and refused all the same: docs/AUDIT.md says why, and what to do.
REFUSED = {
    "closed-over weights": ("not-a-weight", closed_over, BLOCK, Y),
}
