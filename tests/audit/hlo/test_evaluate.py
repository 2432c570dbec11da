"""The evaluator computes what XLA computes: opcode by opcode, and whole programs on N nodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from experiments.adversary.programs import HONEST, LENGTH, interval_model
from fcjax.audit.hlo import graph
from fcjax.audit.hlo.elementwise import Types, is_float
from fcjax.audit.hlo.evaluate import Evaluator, Unauditable
from fcjax.sharded import programs

TYPED = Types(real=frozenset())  # every number in the program's own type


def _text(fn, *args) -> str:
    return jax.jit(fn).lower(*args).compile().as_text()


def _run(text: str, args, types=Types()):  # noqa: B008
    """The results of a program without collectives."""
    module = graph.parse(text)
    dtypes = [types.of(p.shape.dtype) for p in module.entry.parameters]
    steps = Evaluator(module, types).run(
        0, [np.asarray(x, t) for x, t in zip(args, dtypes, strict=True)]
    )
    with pytest.raises(StopIteration) as done:
        next(steps)
    return done.value.value


def _agree(fn, *args, types=Types(), rtol=2e-6):  # noqa: B008
    want = jax.tree.leaves(jax.jit(fn)(*args))
    got = _run(_text(fn, *args), jax.tree.leaves(args), types)
    for w, g in zip(want, got, strict=True):
        assert w.shape == g.shape
        if jnp.issubdtype(w.dtype, jnp.floating):
            np.testing.assert_allclose(np.float64(g), np.float64(w), rtol=rtol, atol=rtol)
        else:
            np.testing.assert_array_equal(g, w)


RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 5, 7)).astype(np.float32)
P = np.abs(X) + np.float32(0.1)
I = RNG.integers(-1000, 1000, (3, 5, 7)).astype(np.int32)  # noqa: E741
U = RNG.integers(0, 2**32, (3, 5, 7)).astype(np.uint32)
B = X > 0
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-38, 3e38, -2.5], np.float32)


@pytest.mark.parametrize(
    "fn",
    [
        jnp.abs, jnp.cbrt, jnp.ceil, jnp.cos, jnp.exp, jnp.expm1, jnp.floor, jnp.isfinite,
        jnp.log1p, lax.logistic, jnp.negative, jnp.round, jnp.sign, jnp.sin, jnp.tanh, lax.round,
    ],
)
def test_functions_of_one_float(fn):
    values = P if fn is jnp.log1p else X
    _agree(fn, values)
    _agree(fn, values, types=TYPED)


@pytest.mark.parametrize("fn", [jnp.sqrt, lax.rsqrt, jnp.log])
def test_functions_of_a_positive_float(fn):
    _agree(fn, P)


@pytest.mark.parametrize(
    "fn",
    [
        jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.maximum, jnp.minimum, lax.rem,
        lax.atan2, lambda a, b: a < b, lambda a, b: a >= b, lambda a, b: a == b,
        lambda a, b: jnp.where(a > b, a, b), lambda a, b: lax.clamp(jnp.float32(-1), a, jnp.abs(b)),
    ],
)
def test_functions_of_two_floats(fn):
    _agree(fn, X, X[::-1].copy())


def test_power():
    _agree(lambda a, b: a**b, P, X)


@pytest.mark.parametrize(
    "fn",
    [jnp.add, jnp.multiply, lax.div, lax.rem, lax.bitwise_xor, lax.bitwise_and, lax.bitwise_or],
)
@pytest.mark.parametrize("values", [I, U], ids=["s32", "u32"])
def test_integers_wrap_and_divide_towards_zero(fn, values):
    _agree(fn, values, values[::-1].copy() + (fn in (lax.div, lax.rem)))


@pytest.mark.parametrize(
    "fn", [lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic]
)
@pytest.mark.parametrize("values", [I, U], ids=["s32", "u32"])
def test_shifts_by_the_width_and_more(fn, values):
    by = (np.arange(values.size).reshape(values.shape) % 40).astype(values.dtype)
    _agree(fn, values, by)


def test_not():
    _agree(lambda b, i: (~b, ~i), B, I)


@pytest.mark.parametrize(
    "to", [jnp.int32, jnp.uint32, jnp.int8, jnp.bool_, jnp.bfloat16, jnp.float16]
)
def test_conversion_of_floats(to):
    _agree(lambda x: x.astype(to), 300 * X)
    _agree(lambda x: x.astype(to), 300 * X, types=TYPED)


def test_conversion_of_special_floats():
    _agree(lambda x: x.astype(jnp.int32), SPECIAL)


def test_conversion_of_integers():
    _agree(
        lambda i, u, b: (i.astype(jnp.float32), u.astype(jnp.int32), b.astype(jnp.float32)), I, U, B
    )


def test_bits():
    _agree(lambda x: lax.bitcast_convert_type(x, jnp.uint32) ^ jnp.uint32(3), X)
    _agree(lambda u: lax.bitcast_convert_type((u >> 9) | 0x3F800000, jnp.float32) - 1, U)


def test_reduce_precision():
    _agree(lambda x: lax.reduce_precision(x, 8, 7), X, rtol=0)
    _agree(lambda x: lax.reduce_precision(x, 8, 7), SPECIAL, rtol=0)


def test_a_conversion_between_real_types_rounds_nothing():
    def fn(x):
        return x.astype(jnp.bfloat16) * 3

    text, real = _text(fn, X), Types(real=frozenset({"f32", "bf16"}))
    np.testing.assert_array_equal(_run(text, [X], real)[0], 3 * np.float64(X))
    assert np.abs(_run(text, [X])[0] - 3 * np.float64(X)).max() > 1e-3


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.broadcast_to(x[:, None], (3, 4, 5, 7)) * 2,
        lambda x: x.transpose(2, 0, 1)[1:6:2, ::2, 1:],
        lambda x: x.reshape(15, 7)[::-1],
        lambda x: jnp.concatenate([x, x + 1], axis=1),
        lambda x: jnp.arange(7, dtype=jnp.float32)[None, None] * x,
        lambda x: lax.pad(x, jnp.float32(9), [(1, 2, 0), (-1, -2, 0), (2, -1, 2)]),
        lambda x: lax.pad(x, jnp.float32(9), [(-2, 0, 1), (-3, 4, 3), (0, -20, 4)]),
        lambda x: x + jnp.asarray(X[:1, :1] + 2),
        lambda x: jnp.tile(x, (2, 1, 3)),
    ],
)
def test_movement(fn):
    _agree(fn, X)


@pytest.mark.parametrize("at", [-3, 0, 2, 100])
def test_slices_that_start_where_a_value_says(at):
    start = np.int32(at)
    _agree(lambda x, n: lax.dynamic_slice(x, (n, 1, n), (2, 3, 4)), X, start)
    _agree(lambda x, n: lax.dynamic_update_slice(x, x[:2, :2, :2] * 2, (n, n, 1)), X, start)


def test_gather():
    rows = np.array([[0, 2, 9], [1, -1, 2]], np.int32)
    _agree(lambda x, n: x.at[n].get(mode="clip"), X, rows)
    _agree(lambda x, n: x.at[:, n, 1].get(mode="clip"), X, rows)
    _agree(
        lambda x, n: jnp.take_along_axis(x[0], n, axis=1, mode="clip"),
        X,
        rows[:, :1].repeat(3, 0)[:5, :],
    )


@pytest.mark.parametrize("axis", [(0,), (1, 2), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("fn", [jnp.sum, jnp.max, jnp.min, jnp.prod])
def test_reductions(fn, axis):
    _agree(lambda x: fn(x, axis=axis), X)


def test_reductions_of_truth():
    _agree(lambda b: (jnp.any(b, 1), jnp.all(b, 2)), B)


def test_a_reduction_starts_from_its_initial_value():
    _agree(lambda x, s: lax.reduce(x, s, lax.add, (1,)), X, np.float32(5))
    _agree(lambda x, s: lax.reduce(x, s, lax.max, (1,)), X, np.float32(0.5))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("combine", [lax.add, lax.max])
def test_windows(combine, padding):
    start = 0.0 if combine is lax.add else -jnp.inf
    _agree(lambda x: lax.reduce_window(x, start, combine, (1, 3, 2), (1, 2, 2), padding), X)


@pytest.mark.parametrize(
    "spec", ["bij,bkj->bik", "abc,dbc->ad", "abc,cd->abd", "abc,abd->bcd", "i,j->ij", "ij,ij->"]
)
def test_dot(spec):
    shapes = {"a": 3, "b": 4, "c": 5, "d": 2, "i": 6, "j": 7, "k": 3}
    a, b = (
        RNG.standard_normal([shapes[d] for d in dims]).astype(np.float32)
        for dims in spec.partition("->")[0].split(",")
    )
    _agree(lambda a, b: jnp.einsum(spec, a, b), a, b, rtol=1e-5)
    _agree(lambda a, b: jnp.einsum(spec, a, b), a, b, rtol=1e-5, types=TYPED)


# A product that waits for its sum: small and large, with each kind of axis.
PRODUCT = """HloModule m, is_scheduled=true

add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }}

fused {{ x = f32[{x}] parameter(0)
  w = f32[4,{n},6] parameter(1)
  y = f32[4,{n},6] broadcast(x), dimensions={{{dims}}}
  p = f32[4,{n},6] multiply(y, w)
  q = f32[{n},4,6] transpose(p), dimensions={{1,0,2}}
  r = f32[{half},2,24] bitcast(q)
  zero = f32[] parameter(2)
  ROOT s = f32[{kept}] reduce({value}, zero), dimensions={{{over}}}, to_apply=add }}

ENTRY e {{ x = f32[{x}] parameter(0)
  w = f32[4,{n},6] parameter(1)
  zero = f32[] parameter(2)
  ROOT f = f32[{kept}] fusion(x, w, zero), kind=kLoop, calls=fused }}
"""


@pytest.mark.parametrize("n", [4, 6000])
@pytest.mark.parametrize(
    ("dims", "value", "over", "kept"),
    [
        ("0", "p", "0", "1,2"), ("0", "p", "1", "0,2"), ("0,1", "p", "0", "1,2"),
        ("1", "p", "1,2", "0"), ("0,1", "p", "0,1", "2"), ("1", "q", "0", "1,2"),
        ("", "p", "2", "0,1"), ("0", "p", "0,1,2", ""), ("1", "r", "2", ""),
    ],
)
def test_a_multiplication_and_its_sum(n, dims, value, over, kept):
    size = {"p": (4, n, 6), "q": (n, 4, 6), "r": (n // 2, 2, 24)}[value]
    axes = [int(d) for d in dims.split(",") if d]
    over_axes = tuple(map(int, over.split(",")))
    left = [str(m) for d, m in enumerate(size) if d not in over_axes]
    shape = [(4, n, 6)[d] for d in axes]
    text = PRODUCT.format(
        x=",".join(map(str, shape)), n=n, dims=dims, half=n // 2, value=value, over=over,
        kept=",".join(left),
    )
    x, w = RNG.standard_normal(shape), RNG.standard_normal((4, n, 6))
    p = (
        np.broadcast_to(x.reshape([(4, n, 6)[d] if d in axes else 1 for d in range(3)]), w.shape)
        * w
    )
    whole = {"p": p, "q": p.transpose(1, 0, 2), "r": p.transpose(1, 0, 2).reshape(size)}[value]
    (got,) = _run(text, [x, w, 0.25])
    np.testing.assert_allclose(got, 0.25 + whole.sum(axis=over_axes), rtol=1e-10, atol=1e-10)


def test_loops_and_branches():
    _agree(lambda x: lax.fori_loop(0, 5, lambda i, y: y * 0.5 + i, x), X)
    _agree(
        lambda x, n: lax.while_loop(lambda s: s[0] < 7, lambda s: (s[0] + 1, s[1] * 2), (n, x)),
        X,
        np.int32(3),
    )
    for which in (0, 1, 2, 9, -4):
        _agree(
            lambda x, n: lax.switch(n, [jnp.sin, jnp.cos, lambda y: y + 1], x), X, np.int32(which)
        )
    _agree(lambda x: lax.cond(x[0, 0, 0] > 0, lambda: x, lambda: 2 * x), X)


def test_random_bits_are_exact():
    def fn(seed):
        return jax.random.bits(jax.random.fold_in(jax.random.key(seed), 5), (11,), jnp.uint32)

    _agree(fn, np.uint32(1234))
    _agree(lambda s: jax.random.gumbel(jax.random.key(s), (100,)), np.uint32(7), rtol=1e-4)


GEMM = """HloModule m, is_scheduled=true

ENTRY e { a = f32[3,4] parameter(0)
  b = f32[5,4] parameter(1)
  c = (f32[3,5], s8[32]) custom-call(a, b), custom_call_target="__cublas$gemm",
    backend_config=CONFIG
  ROOT r = f32[3,5] get-tuple-element(c), index=0 }
"""
CONFIG = """{"gemm_backend_config":{"alpha_real":2,"alpha_imag":0,"beta":BETA,
"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":[],
"rhs_batch_dimensions":[]},"epilogue":"DEFAULT"}}""".replace("\n", "")


def test_a_library_product():
    a, b = RNG.standard_normal((3, 4)), RNG.standard_normal((5, 4))
    (got,) = _run(GEMM.replace("CONFIG", CONFIG.replace("BETA", "0")), [a, b])
    np.testing.assert_allclose(got, 2 * a @ b.T, rtol=1e-12)


ONE = "HloModule m\nENTRY e {{ a = f32[3] parameter(0)\n ROOT b = {} }}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GEMM.replace("CONFIG", CONFIG.replace("BETA", "1")), "plain product"),
        (GEMM.replace("CONFIG", "{}"), "plain product"),
        (GEMM.replace("__cublas$gemm", "puzzle").replace("CONFIG", "{}"), "known call, got puzzle"),
        (ONE.format("f8e5m2[3] convert(a)"), "got f8e5m2"),
        (ONE.format("f32[3] erf(a)"), "a known operator, got erf"),
        (ONE.format("pred[3] compare(a, a), direction=LT, type=TOTALORDER"), "ordinary comparison"),
    ],
)
def test_what_is_not_known_is_refused(text, words):
    module = graph.parse(text)
    args = [np.zeros(p.shape.dims) for p in module.entry.parameters]
    with pytest.raises(Unauditable, match=words.replace("$", r"\$")):
        next(Evaluator(module).run(0, args))


def test_another_number_type_or_count_of_parameters_is_refused():
    module = graph.parse(_text(jnp.sin, X))
    for args in ([], [X], [np.float64(X[0])]):
        with pytest.raises(Unauditable, match="expected"):
            next(Evaluator(module).run(0, args))


# Whole programs on N nodes, against what they really compute.


def join(stop, operands, axis: int | None) -> list[np.ndarray]:
    """What each node receives, by the meaning of the collective, in one group of all nodes."""
    assert stop.instruction.groups == (tuple(range(len(operands))),)
    if stop.kind == "all-gather":
        return [np.concatenate(operands, axis)] * len(operands)
    combine = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}
    root = stop.instruction.called[0].root
    while root.opcode == "convert":
        root = root.operands[0]
    whole = combine[root.opcode].reduce(operands, dtype=operands[0].dtype)
    if stop.kind == "reduce-scatter":
        return np.split(whole, len(operands), axis)
    return [whole] * len(operands)


def run_on_nodes(module, blocks, types) -> list[tuple]:
    """The results of every node, each run up to its next collective before any is run on."""
    evaluator = Evaluator(module, types)
    dtypes = [types.of(p.shape.dtype) for p in module.entry.parameters]
    cast = lambda block: [np.asarray(x, t) for x, t in zip(block, dtypes, strict=True)]  # noqa: E731
    nodes = [evaluator.run(q, cast(block)) for q, block in enumerate(blocks)]
    received = [None] * len(nodes)
    results = []
    while not results:
        stops = []
        for node, value in zip(nodes, received, strict=True):
            try:
                stops.append(node.send(value))
            except StopIteration as done:
                results.append(done.value)
        if stops:
            (axis,) = stops[0].instruction["dimensions"] or (None,)
            each = zip(*(s.operands for s in stops), strict=True)
            joined = [join(stops[0], operands, axis) for operands in each]
            received = list(zip(*joined, strict=True))
    return results


def _values(tree, rng, cfg):
    def one(path, leaf):
        name = jax.tree_util.keystr(path)
        if leaf.dtype == jnp.int32:
            return rng.integers(0, min(cfg.V, LENGTH // 2), leaf.shape).astype(np.int32)
        if leaf.dtype == jnp.uint32:
            return np.uint32(77)
        if leaf.dtype == jnp.bool_:
            return rng.random(leaf.shape) < 0.3
        scale = 1 if len(leaf.shape) < 2 or "cache" in name else 0.3
        return (scale * rng.standard_normal(leaf.shape)).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(one, tree)


# `test_honest` evaluates every honest program; these are also held against the real run.
RUN = (
    "Qwen3, 5 nodes, 4 tokens", "Llama, 3 nodes", "2 nodes, bf16, batch 4", "4 nodes, depth 2",
    "whole, 3 nodes, 3 rows", "whole, 8 nodes, bf16", "whole, sampled, 3 nodes, 3 rows",
    "whole, repetition penalty", "whole, prefill, 3 nodes, 3 rows", "whole, a head of its own",
)


@pytest.mark.parametrize("name", RUN)
def test_whole_programs(name):
    """In the program's own types: what they really compute is then equal to rounding."""
    options = dict(HONEST[name])
    batch, tokens, nodes = (
        options.pop(o, n) for o, n in (("batch", 1), ("tokens", 1), ("nodes", 2))
    )
    layout = interval_model(nodes, **options)
    program, sizes = programs.interval(layout.model, tokens), (batch, tokens, LENGTH)
    compiled = programs.compile(program, layout, *sizes)
    _, abstract = programs.mapped(program, layout, *sizes)
    values = _values(abstract, np.random.default_rng(3), layout.plan.cfg)
    placed = jax.tree.map(lambda x, a: jax.device_put(x, a.sharding), values, abstract)
    blocks = [
        [leaf.addressable_shards[q].data for leaf in jax.tree.leaves(placed)] for q in range(nodes)
    ]
    blocks = jax.device_get(blocks)
    module = graph.parse(compiled.as_text())
    results = run_on_nodes(module, blocks, TYPED)
    exact = layout.dtype == jnp.float32
    want = jax.tree.leaves(compiled(*placed))
    for n, w in enumerate(want):
        for q in range(nodes):
            real, got = np.asarray(w.addressable_shards[q].data), np.asarray(results[q][n])
            if is_float({"float32": "f32", "bfloat16": "bf16"}.get(real.dtype.name, "")):
                real, got = real.astype(np.float64), got.astype(np.float64)
                scale = np.abs(real).max() or 1
                assert np.abs(got - real).max() < (2e-5 if exact else 0.1) * scale, (n, q)
            else:
                np.testing.assert_array_equal(got, real, str((n, q)))
