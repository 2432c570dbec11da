"""`certify`: the audit of functions that know nothing of this project."""

import dataclasses
import gzip

import jax
import jax.numpy as jnp
import pytest
from jaxlib import _hlo

from fcjax import audit
from fcjax.audit import Complete, State, Weight, entry, tensor
from fcjax.audit.domain.digits import Axis
from fcjax.mesh import AXIS, make_mesh

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


def _mapped(fn, out=SHARDS):
    """A function over the nodes, and its arguments."""
    mesh = make_mesh(N)
    specs = (SHARDS, jax.P(AXIS), jax.P(AXIS))
    shapes = ((B, D), (D, F), (F, D))
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=jax.NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    return jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=out), arguments


def _certify(fn, out=SHARDS, roles=None):
    mapped, arguments = _mapped(fn, out)
    return audit.certify(mapped, roles or _roles(), *arguments)


def _scatter(y):
    return jax.lax.psum_scatter(y, AXIS, scatter_dimension=1, tiled=True)


def _mlp(x, up, down):
    return _scatter(jax.nn.relu(_scatter(x @ up)) @ down)


def test_two_layers_of_shards_are_clean():
    found = _certify(_mlp)
    assert found.ok, str(found)
    assert [(c.operator, c.axis) for c in found.before] == [("up", "F"), ("down", "D")]


def test_one_gather_after_it_is_allowed_where_a_result_is_complete():
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
)
def test_violations(code, fn):
    assert code in {v.code for v in _certify(fn).violations}


def test_the_number_of_roles_must_fit():
    roles = audit.Signature(N, _roles().parameters[:2], _roles().results)
    assert [v.code for v in _certify(_mlp, roles=roles).violations] == ["wrong-signature"]


def test_every_stage_of_a_program_is_taken(tmp_path):
    mapped, arguments = _mapped(_mlp)
    jitted = jax.jit(mapped)
    lowered = jitted.lower(*arguments)
    text = lowered.compile().as_text()
    (tmp_path / "program.hlo").write_text(text)
    forms = [
        jitted.trace(*arguments), lowered, lowered.compile(), text, text.encode(),
        gzip.compress(text.encode()), tmp_path / "program.hlo",
    ]
    verdicts = [audit.certify(jitted, _roles(), *arguments)]
    verdicts += [audit.certify(form, _roles()) for form in forms]
    assert all(v.ok and len(v.before) == 2 for v in verdicts)


def test_what_is_no_optimized_program_is_refused_in_a_line():
    mapped, arguments = _mapped(_mlp)
    lowered = jax.jit(mapped).lower(*arguments)
    module = _hlo.hlo_module_from_text(lowered.as_text("hlo"))
    for form in (
        lowered.as_text(),  # StableHLO
        lowered.as_text("hlo"),  # before XLA's passes
        module.as_serialized_hlo_module_proto(),
        "", b"\x1f\x8b\x00", "HloModule",
    ):
        with pytest.raises(audit.Unauditable, match="hand in the text") as e:
            audit.certify(form, _roles())
        assert "\n" not in str(e.value)
    with pytest.raises(audit.Unauditable, match="got a int"):
        audit.certify(7, _roles())


def _with(n, **changes):
    """The roles with another n-th input."""
    inputs = list(_roles().parameters)
    inputs[n] = dataclasses.replace(inputs[n], **changes)
    return audit.Signature(N, tuple(inputs), _roles().results)


HALF = Axis("D", D // N)


@pytest.mark.parametrize(
    ("code", "roles"),
    [
        ("complete-entry", _with(0, axes=(*_roles().parameters[0].axes, Axis("E", 1)))),
        ("complete-entry", _with(0, axes=(Axis("D", D, split=True),))),
        ("wrong-block", _with(1, axes=(Axis("D", D // N, split=True),))),
        ("complete-entry", _with(0, axes=(Axis("B", B), HALF))),  # each node holds both halves
        ("wrong-signature", _with(1, name="down")),
        ("wrong-type", _with(0, dtype="f64")),
        ("wrong-type", _with(1, dtype="s8")),
    ],
)
def test_roles_that_do_not_fit(code, roles):
    assert code in {v.code for v in _certify(_mlp, roles=roles).violations}


@pytest.mark.parametrize(
    ("specs", "code"),
    [(SHARDS, None), (jax.P(), "complete-entry"), (jax.P(AXIS), "complete-entry")],
)
def test_layouts_are_read_from_the_compiled_program(specs, code):
    mesh = make_mesh(N)
    role = tensor(State, "x", "BD", (4, D // N), "D")
    sharding = jax.NamedSharding(mesh, specs)
    found = [v.code for v in entry.sharding_faults([sharding], audit.Signature(N, (role,), ()))]
    assert found == ([code] if code else [])


def test_owners_in_another_order():
    mesh = make_mesh(N)
    order = jax.make_mesh((N,), (AXIS,), devices=mesh.devices[::-1])
    role = tensor(State, "x", "BD", (4, D // N), "D")

    class Backwards:  # a sharding over the nodes in the plan's order, dealt out backwards
        _device_assignment = tuple(mesh.devices)
        devices_indices_map = staticmethod(jax.NamedSharding(order, SHARDS).devices_indices_map)

    found = entry.sharding_faults([Backwards()], audit.Signature(N, (role,), ()))
    assert [v.code for v in found] == ["wrong-owner"]


def test_sub_groups_of_a_second_mesh_axis():
    mesh = jax.make_mesh(
        (2, 2), ("other", AXIS), axis_types=(jax.sharding.AxisType.Explicit,) * 2,
        devices=jax.devices()[:4],
    )
    both = ("other", AXIS)
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=jax.NamedSharding(mesh, spec))
        for shape, spec in (((B, 4 * D), jax.P(None, both)), ((4 * D, 2 * F), jax.P(both)))
    ]
    mapped = jax.shard_map(
        lambda x, w: _scatter(x @ w), mesh=mesh,
        in_specs=(jax.P(None, both), jax.P(both)), out_specs=jax.P(None, both),
    )
    roles = audit.signature(
        4,
        (tensor(State, "x", "BD", (B, D), "D"), tensor(Weight, "w", "DF", (D, 2 * F), "D")),
        tensor(State, "y", "BF", (B, F), "F"),
    )
    found = audit.certify(mapped, roles, *arguments)
    assert found.violations[0].code == "wrong-group", str(found)


def test_a_complete_result_in_a_donated_buffer():
    mesh = make_mesh(N)

    def gathered(x, up, buffer):
        y = _scatter(x @ up)
        return jax.lax.all_gather(y, AXIS, axis=1, tiled=True, to="invarying") + buffer

    specs = (SHARDS, jax.P(AXIS), jax.P())
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=jax.NamedSharding(mesh, spec))
        for shape, spec in zip(((B, D), (D, F), (B, F)), specs, strict=True)
    ]
    mapped = jax.shard_map(gathered, mesh=mesh, in_specs=specs, out_specs=jax.P())
    roles = audit.signature(
        N,
        (
            tensor(State, "x", "BD", (B, D // N), "D"),
            tensor(Weight, "up", "DF", (D // N, F), "D"),
            tensor(audit.Public, "buffer", "BF", (B, F)),
        ),
        tensor(Complete, "y", "BF", (B, F)),
    )
    assert audit.certify(mapped, roles, *arguments).ok
    donating = jax.jit(mapped, donate_argnums=2).lower(*arguments).compile()
    found = audit.certify(donating, roles)
    assert [v.code for v in found.violations] == ["complete-alias"], str(found)


def test_nothing_crosses_once_the_gather_has_started():
    """The gather of one result stands before the scatter of another: by dataflow it may."""
    mesh = make_mesh(N)

    def two(x, up, down):
        y = _scatter(x @ up)
        complete = jax.lax.all_gather(y, AXIS, axis=1, tiled=True, to="invarying")
        tied, _ = jax.lax.optimization_barrier((y, complete))
        return complete, _scatter(jax.nn.relu(tied) @ down)

    specs = (SHARDS, jax.P(AXIS), jax.P(AXIS))
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=jax.NamedSharding(mesh, spec))
        for shape, spec in zip(((B, D), (D, F), (F, D)), specs, strict=True)
    ]
    mapped = jax.shard_map(two, mesh=mesh, in_specs=specs, out_specs=(jax.P(), SHARDS))
    roles = audit.signature(
        N,
        _roles().parameters,
        (tensor(Complete, "y", "BF", (B, F)), tensor(State, "z", "BD", (B, D // N), "D")),
    )
    found = audit.certify(mapped, roles, *arguments)
    assert "schedule" in {v.code for v in found.violations}, str(found)


def test_two_inputs_that_together_are_complete():
    """Halves of the state, which each node holds whole; or one half under both names."""
    mesh = make_mesh(N)
    half = jax.ShapeDtypeStruct((B, D), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P()))
    mapped = jax.shard_map(jnp.add, mesh=mesh, in_specs=(jax.P(), jax.P()), out_specs=jax.P())
    for split in (None, "D"):
        size = D // N if split else D
        left, right = (tensor(State, name, "BD", (B, size), split) for name in ("left", "right"))
        found = audit.certify(mapped, audit.signature(N, [left, right], left), half, half)
        codes = [v.code for v in found.violations]
        assert codes.count("complete-entry") >= 2, str(found)


V = 50


@pytest.mark.parametrize(
    ("code", "lookup"),
    [
        (None, lambda table, ids: table[ids]),
        ("wrong-axis", lambda table, ids: table[ids][:, ::-1] + table[:, :1][ids]),
        ("wrong-axis", lambda table, ids: table[ids + (table[ids, 0] > 0).astype(jnp.int32)]),
        ("wrong-axis", lambda table, ids: jax.nn.one_hot(ids, V, dtype=table.dtype) @ table),
    ],
)
def test_rows_of_a_table_are_state(code, lookup):
    """Whole rows that public values pick are a shard; whatever else is made of a table is not."""
    mesh = make_mesh(N)
    specs = (jax.P(None), SHARDS, jax.P(AXIS))
    arguments = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, spec))
        for shape, dtype, spec in zip(
            ((B,), (V, D), (D, F)), (jnp.int32, jnp.float32, jnp.float32), specs, strict=True
        )
    ]
    roles = audit.signature(
        N,
        (
            tensor(audit.Public, "ids", "B", (B,)),
            tensor(audit.Table, "table", "VD", (V, D // N), "D"),
            tensor(Weight, "up", "DF", (D // N, F), "D"),
        ),
        tensor(State, "y", "BF", (B, F // N), "F"),
    )

    def program(ids, table, up):
        return _scatter(lookup(table, ids) @ up)

    mapped = jax.shard_map(program, mesh=mesh, in_specs=specs, out_specs=SHARDS)
    found = audit.certify(mapped, roles, *arguments)
    assert [v.code for v in found.violations][:1] == ([code] if code else []), str(found)
    if not code:
        assert found.before[0].reads == ("residual",)
