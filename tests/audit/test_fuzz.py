"""Damaged and foreign HLO: it ends with a verdict or `Unauditable`, in bounded time.

A damaged program may only pass if it means the same: every transfer, its operand's size and
everything else that the verdict lists must be those of the honest one.
"""

import collections
import functools
import json
import os
import pickle
import random
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest

from experiments.adversary.programs import WHOLE, honest
from fcjax import audit
from fcjax.audit import Public, State, Weight, tensor
from fcjax.audit.hlo import guard
from fcjax.mesh import AXIS, make_mesh
from fcjax.sharded.sampling import Sampling


@pytest.fixture(scope="module")
def program():
    return honest()


@pytest.mark.parametrize(
    "options",
    [{}, WHOLE | {"layers": 1, "sampling": Sampling(1.0, 5)}],
)
def test_damaged_programs(options, tmp_path):
    case = tmp_path / "case"
    case.write_bytes(pickle.dumps(honest(**options)))
    done = subprocess.run(
        [sys.executable, "-m", "tests.audit.fuzz", str(case), "9", "7"],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    ends = json.loads(done.stdout)
    print(f"\n{ends}")
    assert "clean, same meaning" in ends
    assert options or "violation" in ends  # in a longer program few damages reach a transfer


@pytest.mark.parametrize(
    "text",
    ["", "\0", "HloModule", "HloModule x\n", "ENTRY", "{" * 10_000, "%" * 10_000, "(" * 200_000,
     "HloModule m, is_scheduled=true\n\nENTRY e {\n" + "  %a = f32[] add(%a, %a)\n" * 9 + "}\n"],
)
def test_garbage(text, program):
    with pytest.raises(audit.Unauditable):
        audit.audit_interval(guard.check(text), program[1])


def test_a_text_that_ends_the_parsers_process(program):
    text = program[0].replace(" parameter(0)", " parameter(7)", 1)
    with pytest.raises(audit.Unauditable, match="crashed"):
        guard.check(text)


def _foreign():
    x = jnp.ones((6, 8))
    yield "matmul", lambda x: x @ x.T, x
    yield "sort", lambda x: jnp.sort(x, axis=1), x
    yield "loop", lambda x: jax.lax.fori_loop(0, 9, lambda i, y: jnp.sin(y) * 2.0, x), x
    yield "scan", lambda x: jax.lax.scan(lambda c, r: (c + r, c * r), x[0], x), x
    yield "branch", lambda x: jax.lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x), x
    yield "convolution", lambda x: jnp.convolve(x[0], x[1]), x
    yield "fft", lambda x: jnp.fft.fft(x), x
    yield "random", lambda x: x + jax.random.normal(jax.random.key(0), x.shape), x
    yield "cholesky", lambda x: jnp.linalg.cholesky(x.T @ x), x
    yield "scatter", lambda x: x.at[jnp.array([1, 1]), 2].add(1.0), x
    yield "argmax", lambda x: jnp.argmax(x, axis=1), x
    yield "top k", lambda x: jax.lax.top_k(x, 3), x
    yield "complex", lambda x: jnp.abs(jax.lax.complex(x, x)), x
    yield "cumsum", lambda x: jnp.cumsum(x, axis=1), x


FOREIGN = {name: (fn, x) for name, fn, x in _foreign()}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_programs(name, program):
    """As a program of the interval they do not fit; as functions of their own they move nothing."""
    fn, x = FOREIGN[name]
    compiled = jax.jit(fn).lower(x).compile()
    found = audit.audit_interval(compiled.as_text(), program[1])
    assert {v.code for v in found.violations} == {"wrong-signature"}
    results = jax.tree.leaves(jax.eval_shape(fn, x))
    for role in (State, Weight, Public):
        roles = audit.signature(
            1,
            [tensor(role, "x", "BD", x.shape)],
            [tensor(State, f"r{n}", "BDE"[: r.ndim], r.shape) for n, r in enumerate(results)],
        )
        try:
            found = audit.certify(compiled, roles)
        except audit.Unauditable as e:
            assert "expected" in str(e)  # and says what
        else:
            assert not found.before and not found.after


def _programs():
    """Programs that move state, weights or nothing: (what certify takes, its input shapes)."""
    mesh = make_mesh(2)
    scatter = functools.partial(jax.lax.psum_scatter, axis_name=AXIS, tiled=True)
    gather = functools.partial(jax.lax.all_gather, axis_name=AXIS, tiled=True)
    functions = [
        lambda x, w: (scatter(x @ w, scatter_dimension=1), x),
        lambda x, w: (gather(x, axis=1) * 2, w),
        lambda x, w: (x * jax.lax.psum(jnp.sum(x * x), AXIS), w + 1),
    ]
    specs = (jax.P(None, AXIS), jax.P(AXIS))
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=jax.NamedSharding(mesh, spec))
        for shape, spec in zip(((3, 8), (8, 6)), specs, strict=True)
    ]
    for fn in functions:
        mapped = jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=(specs[0], jax.P(AXIS)))
        lowered = jax.jit(mapped).lower(*arguments)
        compiled = lowered.compile()
        yield from [compiled] * 9  # the others start a compiler or a process each time
        yield from (lowered, compiled.as_text(), lowered.as_text(), lowered.as_text("hlo"))


def _any_roles(rng):
    """The first program's roles, or near them: of any kind, rank, size, type, split and number."""

    def role(kind, name, letters, shape, split):
        if rng.random() < 0.1:
            shape = [rng.choice([0, 1, 2, 3, 4, 6, 8]) for _ in range(rng.randrange(4))]
            letters = "BDF"[: len(shape)]
        if rng.random() < 0.2 or split not in letters:
            split = rng.choice([None, *letters])
        if rng.random() < 0.2:
            kind = rng.choice([State, Weight, Public, audit.Table, audit.Complete])
        dtype = rng.choice(["f64", "s8", "no such type"]) if rng.random() < 0.1 else ""
        return tensor(kind, rng.choice([name] * 9 + ["x"]), letters, shape, split, dtype)

    inputs = role(State, "x", "BD", (3, 4), "D"), role(Weight, "w", "DF", (4, 6), "D")
    results = role(State, "y", "BF", (3, 3), "F"), role(State, "z", "BD", (3, 4), "D")
    count = rng.choice([2] * 9 + [0, 1])
    return audit.Signature(rng.choice([2] * 9 + [1, 3]), inputs[:count], results[-count:])


def _any_patterns(rng):
    """What inputs are by their names, of any kind, and sometimes no pattern or no kind at all."""
    kinds = [State, Weight, Public, audit.Table] * 5 + [audit.Complete, None, "state"]
    patterns = ["x", "w", "args", ".", ""] * 4 + ["(", "nothing", "[0]"]
    return {rng.choice(patterns): rng.choice(kinds) for _ in range(rng.randrange(1, 4))}


def _judged(program, rng):
    found = audit.certify(program, _any_roles(rng))
    str(found), found.text("any"), found.to_json()
    return "clean" if found.ok else "violation"


def _told(program, rng):
    found = audit.handed(program, _any_patterns(rng))
    found.text(), found.as_dict()
    return "told"


def test_any_roles_with_any_program():
    rng, ends = random.Random(7), collections.Counter()
    programs, end = list(_programs()), time.monotonic() + 18
    while time.monotonic() < end:
        ask = rng.choice([_judged, _told])
        try:
            ends[ask(rng.choice(programs), rng)] += 1
        except audit.Unauditable as e:
            assert "expected" in str(e)
            ends[f"refused by {ask.__name__}"] += 1
    print(f"\n{dict(ends)}")
    assert ends["violation"] > 20 and ends["refused by _judged"] > 5 and ends["clean"]
    assert ends["told"] > 20 and ends["refused by _told"] > 20


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_programs_are_told(name):
    """On one node nothing is handed over; whatever the operator, it is followed to its results."""
    fn, x = FOREIGN[name]
    for kind in (State, audit.Table):
        found = audit.handed(jax.jit(fn), {".": kind}, x)
        assert found.text() and len(found.results) == len(jax.tree.leaves(jax.eval_shape(fn, x)))
        assert {row.kind.partition(" ")[0] for row in found.rows} <= {"call"}
