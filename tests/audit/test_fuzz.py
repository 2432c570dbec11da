"""Damaged and foreign HLO: it ends with a verdict or `Unauditable`, in bounded time.

A damaged program may only pass if it means the same: every transfer, its operand's size and
everything else that the verdict lists must be those of the honest one.
"""

import json
import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from experiments.adversary.programs import WHOLE, honest
from fcjax import audit
from fcjax.audit import Public, State, Weight, tensor
from fcjax.audit.hlo import guard
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
)  # fmt: skip
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
