"""Honest programs that differ from the project's own, and a dishonest neighbour of each.

Small blocks with a norm and an MLP, written for `certify` with shapes alone. VARIATIONS maps a name
to (function on a node, its inputs, its result); NEIGHBOURS to (reason code, function, inputs,
result). `program` makes of these what `certify` takes.
"""

import functools

import jax
import jax.numpy as jnp
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
}  # fmt: skip
