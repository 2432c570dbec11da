"""`certify`: the audit of functions that know nothing of this project."""

import jax
import jax.numpy as jnp
import pytest

from fcjax import audit, ownership
from fcjax.audit import Complete, State, Weight, tensor
from fcjax.ownership import AXIS

D, F, B, N = 26, 34, 3, 2


def _roles(result=None):
    return audit.signature(
        N,
        (
            tensor(State, "x", "BD", (B, D // N), "D"),
            tensor(Weight, "up", "DF", (D // N, F), "D"),
            tensor(Weight, "down", "FD", (F // N, D), "F"),
        ),
        result or tensor(State, "y", "BD", (B, D // N), "D"),
    )


SHARDS = jax.P(None, AXIS)


def _certify(fn, out=SHARDS, roles=None):
    mesh = ownership.make_mesh(N)
    specs = (SHARDS, jax.P(AXIS), jax.P(AXIS))
    shapes = ((B, D), (D, F), (F, D))
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=jax.NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=out)
    return audit.certify(mapped, roles or _roles(), *arguments)


def _scatter(y):
    return jax.lax.psum_scatter(y, AXIS, scatter_dimension=1, tiled=True)


def _mlp(x, up, down):
    return _scatter(jax.nn.relu(_scatter(x @ up)) @ down)


def test_two_layers_of_shards_are_clean():
    found = _certify(_mlp)
    assert found.ok, str(found)
    assert [(c.operator, c.axis) for c in found.before] == [("up", "F"), ("down", "D")]


def test_one_gather_behind_it_is_allowed_where_a_result_is_complete():
    def gathered(x, up, down):
        y = _mlp(x, up, down)
        return jax.lax.all_gather(y, AXIS, axis=1, tiled=True, to="invarying")

    roles = _roles(tensor(Complete, "y", "BD", (B, D)))
    assert _certify(gathered, jax.P(), roles).ok
    assert not _certify(lambda *a: gathered(*a), jax.P(), _roles()).ok


@pytest.mark.parametrize(
    ("code", "fn"),
    [
        ("early-gather", lambda x, up, down: _mlp(
            jax.lax.all_gather(x, AXIS, axis=1, tiled=True)[:, 1 : D // N + 1], up, down)),
        ("all-reduce-of-state", lambda x, up, down: jax.lax.psum(x @ up, AXIS)[:, : D // N] * x),
        ("hidden-gather", lambda x, up, down: _scatter(jnp.concatenate([x, x], axis=1)) + x),
    ],
)  # fmt: skip
def test_violations(code, fn):
    assert code in {v.code for v in _certify(fn).violations}


def test_the_number_of_roles_must_fit():
    roles = audit.Signature(N, _roles().parameters[:2], _roles().results)
    assert [v.code for v in _certify(_mlp, roles=roles).violations] == ["wrong-signature"]
