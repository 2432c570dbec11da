"""Honest programs that differ from the project's own, and a dishonest neighbour of each.

Small blocks with a norm and an MLP, written for `certify` with shapes alone. VARIATIONS maps a name
to (function on a node, its inputs, its result); NEIGHBOURS to (reason code, function, inputs,
result). `program` makes of these what `certify` takes.
"""

import jax
import jax.numpy as jnp
from jax import lax

from experiments.adversary.written_otherwise import (
    BLOCK,
    DOWN,
    FIRST,
    GATE,
    GATE_UP,
    GATE_UP_Z,
    INT8,
    LAYER_NORM,
    SCALE,
    SECOND,
    SECOND_SQUARE,
    SQUARE,
    STACK,
    SUM,
    UP,
    D,
    Dn,
    F,
    Fn,
    K,
    L,
    N,
    X,
    Y,
    block,
    closed_over,
    dealing_again,
    dequantised,
    folded,
    gated,
    gated_by_itself,
    gated_by_two,
    gathering,
    guarded,
    guarded_by,
    layer_norm,
    of_node,
    only,
    over_all,
    scaled,
    scanned,
    scatter,
    side_by_side,
    squares,
    stacked,
    summed_in,
    while_any_is_positive,
    without_nan,
)
from fcjax.audit import signature
from fcjax.mesh import AXIS, make_mesh


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
    "NaN guard": (guarded(without_nan), BLOCK, Y),
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
}

NEIGHBOURS = {
    "scale is a mask of coordinates": (
        "hidden-gather", scaled(lambda y, r: only(y * r, 5)), BLOCK, Y,
    ),
    "scale is a mask of rows": (
        "hidden-gather", scaled(lambda y, r: y * only(r, 1, axis=0)), BLOCK, Y,
    ),
    "scale is a mask of nodes": ("hidden-gather", scaled(lambda y, r: y * of_node(r)), BLOCK, Y),
    "scale is a mask of nodes, after all that": (
        "hidden-gather", scaled(lambda y, r: of_node(y * r)), BLOCK, Y,
    ),
    "scale with its rows turned": (
        "hidden-gather", scaled(lambda y, r: y * r[::-1]), BLOCK, Y,
    ),
    "statistic / D of one coordinate": (
        "not-a-statistic", scaled(mean=lambda x: over_all(SUM(only(x, 5) ** 2) / D)), BLOCK, Y,
    ),
    "statistic / D of one node": (
        "not-a-statistic", scaled(mean=lambda x: over_all(of_node(SUM(x * x) / D))), BLOCK, Y,
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
            without_nan(jnp.where(jnp.arange(F)[None] == 5, h @ up, jnp.nan)))), BLOCK, Y,
    ),
    "NaN guard that says where something else is NaN": (
        "hidden-gather",
        guarded_by(lambda y: jnp.isnan(jnp.where(jnp.arange(F)[None] == 5, y, jnp.nan))), BLOCK, Y,
    ),
    "mean is one coordinate": (
        "not-a-statistic", layer_norm(total=lambda x: SUM(only(x, 5))), LAYER_NORM, Y,
    ),
    "mean is a slice": ("not-a-statistic", layer_norm(total=lambda x: x[:, 5:6]), LAYER_NORM, Y),
    "mean is of one node": (
        "not-a-statistic", layer_norm(total=lambda x: of_node(SUM(x))), LAYER_NORM, Y,
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
    "halves that overlap, of almost the same state": (
        "unplanned-collective", gated_by_itself, (X, SCALE, GATE_UP, DOWN), Y,
    ),
    "the statistic's slot carries a coordinate": (
        "hidden-gather", folded(lambda x: x[:, 5:6]), BLOCK, Y,
    ),
    "the statistic's slot carries a coordinate's square": (
        "hidden-gather", folded(lambda x: SUM(only(x, 5) ** 2)), BLOCK, Y,
    ),
    "the statistic's slot carries one node's": (
        "hidden-gather", folded(lambda x: of_node(SUM(x * x))), BLOCK, Y,
    ),
    "the statistic's slot is another for each owner": (
        "hidden-gather", folded(dealt=lambda q: only(q, 1)), BLOCK, Y,
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
    "a scan that gathers": ("control-flow", scanned(gathering), STACK, Y),
    "a scan that deals out the same state": ("unplanned-collective", dealing_again, STACK, Y),
    "as many rounds as the state says": ("control-flow", while_any_is_positive, STACK, Y),
    "int8 weights, the scale is a mask": (
        "not-a-weight", dequantised(scale_of=lambda s: only(s, 5, axis=0)), INT8, Y,
    ),
    "int8 weights, the scale after the product is a mask": (
        "hidden-gather", dequantised(False, lambda s: only(s, 5, axis=0)), INT8, Y,
    ),
}

# Honest, and refused all the same: docs/AUDIT.md says why, and what to do.
REFUSED = {
    "closed-over weights": ("not-a-weight", closed_over, BLOCK, Y),
}
