"""Groups of nodes that run a program side by side, each on rows of its own (data x node)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fcjax import audit
from fcjax.audit import Public, State, Weight, tensor

B, D, F, N, GROUPS = 6, 12, 20, 2, 3
ROWS, EVERY = B // GROUPS, ((0, 1), (2, 3), (4, 5))


def mlp(x, w, v):
    y = lax.psum_scatter(x @ w, "node", scatter_dimension=1, tiled=True)
    return x + lax.psum_scatter(y @ v, "node", scatter_dimension=1, tiled=True)


def crossing_groups(x, w, v):
    return lax.psum(mlp(x, w, v), "data")


def gathering_rows(x, w, v):
    return mlp(x, w, v) + lax.all_gather(x, "data").sum(0)


def gathering_all(x, w, v):
    return mlp(x, w, v) + lax.all_gather(x, ("data", "node")).sum()


def other_order(x, w, v):
    pairs = [(q, 1 - q) for q in range(N)]
    return mlp(lax.ppermute(x, "node", pairs), w, v)


def signature(groups, rows=ROWS):
    x = tensor(State, "x", "BD", (rows, D // N), "D")
    w = tensor(Weight, "w", "DF", (D // N, F), "D")
    v = tensor(Weight, "v", "FD", (F // N, D), "F")
    return audit.signature(N, [x, w, v], [tensor(State, "y", "BD", (rows, D // N), "D")], groups)


def certified(fn, groups=EVERY, order=range(6), rows="data", names=("data", "node"), out="data"):
    """Rows are dealt out over "data", coordinates over "node"."""
    shape = (GROUPS, N) if names[0] == "data" else (N, GROUPS)
    devices = np.array(jax.devices())[list(order)].reshape(shape)
    mesh = jax.sharding.Mesh(devices, names)
    specs = (jax.P(rows, "node"), jax.P("node"), jax.P("node"))
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=jax.NamedSharding(mesh, spec))
        for shape, spec in zip(((B, D), (D, F), (F, D)), specs, strict=True)
    ]
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=jax.P(out, "node"))
    roles = signature(groups, ROWS if rows else B)
    return audit.certify(mapped, roles, *arguments)


def test_groups_are_clean():
    verdict = certified(mlp)
    assert verdict.ok, str(verdict)
    assert [c.kind for c in verdict.before] == ["reduce-scatter"] * 2


def test_devices_may_stand_in_any_order():
    """A group's devices are numbered as the program numbers them, by their place in the mesh."""
    assert certified(mlp, order=(3, 0, 5, 1, 2, 4)).ok
    assert certified(mlp, ((0, 3), (1, 4), (2, 5)), names=("node", "data")).ok
    assert certified(mlp, rows=None, out=None).ok  # every group on the same rows


@pytest.mark.parametrize(
    ("fn", "out"),
    [(crossing_groups, None), (gathering_rows, "data"), (gathering_all, "data")],
)
def test_nothing_crosses_between_groups(fn, out):
    verdict = certified(fn, out=out)
    assert "wrong-group" in {v.code for v in verdict.violations}, str(verdict)


def test_other_groups_than_those_that_are_named():
    codes = {v.code for v in certified(mlp, ((0, 3), (1, 4), (2, 5))).violations}
    assert "wrong-group" in codes
    codes = {v.code for v in certified(mlp, ((1, 0), (2, 3), (4, 5))).violations}
    assert codes == {"wrong-owner"}
    codes = {v.code for v in certified(mlp, ()).violations}
    assert "wrong-signature" in codes
    assert not certified(other_order).ok


@pytest.mark.parametrize(
    "groups", [((0, 1), (2,)), ((0, 1), (1, 2)), ((1, 2), (3, 4)), ((0,), (1,))]
)
def test_groups_that_are_none(groups):
    with pytest.raises(ValueError, match="groups: expected 2 devices in each"):
        audit.signature(N, [tensor(Public, "x", "B", (2,))], [], groups)
