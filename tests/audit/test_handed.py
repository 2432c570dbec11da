"""`handed`: who is handed what in programs that know nothing of this project.

The programs have the structure of public models: tensor parallelism with the residual complete on
every node, an MLP cut by columns and rows, experts on different nodes, weights that are gathered
before they are used, rows dealt out over a second mesh axis, layers in a loop.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from experiments.adversary.programs import WHOLE, honest
from fcjax import audit
from fcjax.audit import Public, State, Table, Unauditable, Weight
from fcjax.audit.handed import handed_by

B, D, F, N = 4, 16, 32, 4
ROLES = {"tokens|position": Public, "embed": Table, "w_": Weight, "x|cache": State}


def _mesh(**axes):
    sizes = tuple(axes.values())
    auto = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(sizes, tuple(axes), axis_types=auto, devices=jax.devices()[:N])


NODES = _mesh(n=N)
GRID = _mesh(data=2, n=2)


def _array(mesh, shape, *spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, jax.P(*spec)))


def _say(fn, *arguments, roles=ROLES):
    return audit.handed(jax.jit(fn), roles, *arguments)


def _rows(handed):
    return [(r.kind, r.before.what, r.after.what) for r in handed.rows]


def _over_nodes(fn, out, mesh=NODES):
    """A function over the nodes, of a shard of x, up and down."""
    specs = (jax.P(None, "n"), jax.P("n"), jax.P("n"))
    arguments = [
        _array(mesh, shape, *spec)
        for shape, spec in zip(((B, D), (D, F), (F, D)), specs, strict=True)
    ]

    def named(x, w_up, w_down):
        return fn(x, w_up, w_down)

    mapped = jax.shard_map(named, mesh=mesh, in_specs=specs, out_specs=out)
    return _say(mapped, *arguments)


def _scatter(y):
    return jax.lax.psum_scatter(y, "n", scatter_dimension=1, tiled=True)


SHARDS = jax.P(None, "n")


def test_a_program_that_keeps_to_shards():
    def clean(x, up, down):
        x = x * jax.lax.rsqrt(jax.lax.psum(jnp.sum(x * x, 1, keepdims=True), "n") + 1)
        return _scatter(jax.nn.relu(_scatter(x @ up)) @ down)

    found = _over_nodes(clean, SHARDS)
    assert _rows(found) == [
        ("all-reduce", "statistic", "statistic"),
        ("reduce-scatter", "partial sum", "own shard"),
        ("reduce-scatter", "partial sum", "own shard"),
    ]
    assert [r.bytes for r in found.rows] == [4 * B, 4 * B * F // N, 4 * B * D // N]
    assert [r.since for r in found.rows] == [(), ("w_up",), ("w_down",)]
    assert [r.states for r in found.rows] == [("x",)] * 3
    assert found.ok and found.inputs["x"].words == "own shard: 4 of 16 along dim 1"
    assert [r.what for r in found.results] == ["own shard"]


def _next(x):
    return jax.lax.ppermute(x, "n", [(q, (q + 1) % N) for q in range(N)])


def _placed(x):
    whole = jnp.zeros((B, D))
    return jax.lax.dynamic_update_slice(whole, x, (0, jax.lax.axis_index("n") * (D // N)))


def _masked(x):
    mine = jax.lax.axis_index("n") == jnp.arange(D) // (D // N)
    return jnp.where(mine, jnp.tile(x, N), 0)


def _to_all(whole):
    """A row for each node, with the sum of what all of them put in."""
    rows = jnp.broadcast_to(whole[None], (N, B, D))
    return jax.lax.psum_scatter(rows, "n", scatter_dimension=0, tiled=True)


def _my_rows():
    """The rows of an identity that stand for a node's own coordinates."""
    mine = jnp.arange(D // N) + jax.lax.axis_index("n") * (D // N)
    return (mine[:, None] == jnp.arange(D)[None]).astype(jnp.float32)


@pytest.mark.parametrize(
    ("before", "after", "fn", "out"),
    [
        ("own shard", "complete", lambda x: jax.lax.all_gather(x, "n", axis=1, tiled=True), "n"),
        ("own shard", "complete", lambda x: jax.lax.all_gather(x, "n"), "n"),
        ("own shard", "complete", lambda x: jax.lax.psum(_placed(x), "n"), ()),
        (None, "complete", lambda x: jax.lax.psum(_masked(x), "n"), ()),
        ("own shard", "another's shard", _next, (None, "n")),
        ("own shard", "complete", lambda x: jax.lax.all_to_all(x, "n", 0, 1, tiled=True), ("n",)),
        ("statistic", "statistic", lambda x: jax.lax.pmax(jnp.max(x, 1), "n"), ()),
        ("own shard", "complete", lambda x: jax.lax.psum(x, "n"), ()),
        (None, "complete", lambda x: _to_all(_placed(x)), "n"),
        (None, "complete", lambda x: _to_all(_placed(x @ np.eye(D // N, dtype="f"))), "n"),
        (None, "complete", lambda x: jax.lax.psum(x @ _my_rows(), "n"), ()),
    ],
)
def test_one_transfer_of_state(before, after, fn, out):
    found = _over_nodes(lambda x, up, down: fn(x), jax.P(*out))
    (row,) = found.rows
    assert row.after.what == after and before in (row.before.what, None), found.text()
    assert found.results[0].what == after and found.ok == (after == "statistic")


def test_an_exchange_from_rows_to_coordinates():
    """Each node has all coordinates of its rows, and then its own coordinates of all rows."""
    mapped = jax.shard_map(
        lambda x: jax.lax.all_to_all(x, "n", 1, 0, tiled=True),
        mesh=NODES, in_specs=jax.P("n"), out_specs=SHARDS,
    )
    found = _say(mapped, _array(NODES, (B, D), "n"))
    (row,) = found.rows
    assert (row.before.what, row.after.what) == ("complete", "own shard"), found.text()
    assert found.inputs["x"].words == "complete in its rows: a block of 4"


def test_a_block_that_is_taken_by_the_number_of_the_node():
    """On two mesh axes the compiler looks up offsets and choices in tables."""

    def cut(x, w_up, w_down):
        y = jax.lax.with_sharding_constraint(x @ w_up, jax.NamedSharding(GRID, jax.P(None, "n")))
        return jax.lax.with_sharding_constraint(y, jax.NamedSharding(GRID, jax.P("data", None)))

    found = _say(
        cut,
        _array(GRID, (B, D)),
        _array(GRID, (D, F), None, "data"),
        _array(GRID, (F, D)),
    )
    assert "not followed" not in {r.after.what for r in found.rows}, found.text()
    assert found.results[0].what == "complete"


def test_one_cause_does_not_hide_the_rest():
    """The complete state is gathered first; what is handed over later is told all the same."""

    def gathered(x, up, down):
        whole = jax.lax.all_gather(x, "n", axis=1, tiled=True)
        mine = jax.lax.dynamic_slice(whole, (0, jax.lax.axis_index("n") * 4), (B, 4)) + x
        return _scatter(mine @ up), jax.lax.psum(mine @ up, "n"), _next(mine)

    found = _over_nodes(gathered, (SHARDS, jax.P(), SHARDS))
    kinds = {r.kind: r.after.what for r in found.rows}
    assert kinds == {
        "all-gather": "complete", "reduce-scatter": "own shard", "all-reduce": "complete",
        "collective-permute": "another's shard",
    }
    later = [r.before for r in found.rows if r.kind != "all-gather"]
    assert all(b.whole for b in later) and "of complete state" in found.text()


def test_a_weight_that_is_gathered_is_no_state():
    def fsdp(x, up, down):
        return jax.lax.all_gather(up, "n", axis=0, tiled=True).sum() * x

    found = _over_nodes(fsdp, SHARDS)
    (row,) = found.rows
    assert row.after.words == "weight: complete" and row.weights == ("w_up",) and not row.states


def _mlp(x, w_up, w_down):
    return x + jax.nn.relu(x @ w_up) @ w_down


@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize("mesh", [NODES, GRID])
def test_columns_then_rows(mesh, scanned):
    """The residual enters complete, and the one sum of each layer hands it to every node again."""
    layers, rows = 3, "data" if mesh is GRID else None

    def model(x, w_up, w_down):
        if scanned:
            return jax.lax.scan(lambda x, w: (_mlp(x, *w), None), x, (w_up, w_down))[0]
        for n in range(layers):
            x = _mlp(x, w_up[n], w_down[n])
        return x

    found = _say(
        model,
        _array(mesh, (B, D), rows, None),
        _array(mesh, (layers, D, F), None, None, "n"),
        _array(mesh, (layers, F, D), None, "n", None),
    )
    assert found.inputs["x"].what == "complete"
    count = 1 if scanned else layers
    assert _rows(found) == [("all-reduce", "partial sum", "complete")] * count
    assert sum(r.times for r in found.rows) == layers
    groups = ((0, 1), (2, 3)) if rows else ((0, 1, 2, 3),)
    assert all(r.groups == groups for r in found.rows)
    assert found.rows[0].bytes == 4 * B * D // (2 if rows else 1)
    assert "Every node starts with all coordinates of x." in found.text()


def test_a_model_with_rows_and_heads_on_two_axes():
    """Embedding, attention over a cache, MLP and head, as in tensor-parallel Qwen3 or Llama."""
    K, G, H, V, S = 2, 2, 4, 24, 8

    def step(tokens, position, embed, cache_k, cache_v, w_q, w_k, w_v, w_o, w_up, w_down, w_head):
        x = embed[tokens]
        n = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        q, k, v = jnp.einsum("btd,dkgh->btkgh", n, w_q), n @ w_k, n @ w_v
        k, v = k.reshape(B, 1, K, H), v.reshape(B, 1, K, H)
        cache_k = jax.lax.dynamic_update_slice(cache_k, k, (0, position, 0, 0))
        cache_v = jax.lax.dynamic_update_slice(cache_v, v, (0, position, 0, 0))
        scores = jax.nn.softmax(jnp.einsum("btkgh,bskh->bkgts", q, cache_k))
        o = jnp.einsum("bkgts,bskh->btkgh", scores, cache_v)
        x = _mlp(x + jnp.einsum("btkgh,kghd->btd", o, w_o), w_up, w_down)
        return jnp.argmax(x @ w_head, -1), cache_k, cache_v

    array = functools.partial(_array, GRID)
    cache = array((B, S, K, H), "data", None, "n", None)
    found = _say(
        step,
        array((B, 1), "data", dtype=jnp.int32),
        array((), dtype=jnp.int32),
        array((V, D), "n", None),
        *(cache, cache),
        array((D, K, G, H), None, "n"),
        *[array((D, K * H), None, "n")] * 2,
        array((K, G, H, D), "n"),
        array((D, F), None, "n"),
        array((F, D), "n", None),
        array((D, V), None, "n"),
    )
    state = [r for r in found.rows if r.kind == "all-reduce"]
    assert [r.after.what for r in state] == ["complete"] * 3, found.text()
    assert [r.since[-1] for r in state] == ["embed", "w_o", "w_down"]
    assert all(r.after.what == "statistic" for r in found.rows if r.kind == "all-gather")
    assert {holds.what for holds in found.inputs.values()} == {"own shard"}
    assert [r.what for r in found.results] == ["statistic", "own shard", "own shard"]


def test_experts_on_different_nodes():
    """Tokens go to the node of their expert and come back, by two exchanges."""

    def experts(x, w_router, w_up, w_down):
        each = jnp.einsum("td,te->etd", x, jax.nn.softmax(x @ w_router))  # [E, T, D]
        there = jax.lax.all_to_all(each, "n", 0, 1, tiled=True)
        done = jax.nn.relu(jnp.einsum("etd,edf->etf", there, w_up))
        back = jax.lax.all_to_all(jnp.einsum("etf,efd->etd", done, w_down), "n", 1, 0, tiled=True)
        return jnp.sum(back, 0)

    specs = (jax.P("n"), jax.P(), jax.P("n"), jax.P("n"))
    mapped = jax.shard_map(experts, mesh=NODES, in_specs=specs, out_specs=jax.P("n"))
    shapes = ((2 * B, D), (D, N), (N, D, F), (N, F, D))
    found = _say(mapped, *(_array(NODES, s, *p) for s, p in zip(shapes, specs, strict=True)))
    assert [(r.kind, r.after.what) for r in found.rows] == [("all-to-all", "complete")] * 2
    assert found.rows[0].bytes == 4 * 2 * B * D  # T/N rows from each of N nodes
    assert "w_router" in found.rows[0].since and found.rows[1].since == ("w_up", "w_down")


def test_what_leaves_the_node_for_code_that_is_not_known():
    def called(x):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((B, D), jnp.float32), x) + x

    found = _say(called, jax.ShapeDtypeStruct((B, D), jnp.float32))
    assert [r.after.what for r in found.rows] == ["not followed"], found.text()
    assert found.rows[0].kind.startswith("call of ")


def test_collectives_in_branches_and_unbounded_loops():
    def branch(x, up, down):
        going = jax.lax.psum(jnp.sum(x), "n") > 0
        gather = lambda x: jax.lax.all_gather(x, "n", axis=1, tiled=True)  # noqa: E731
        y = jax.lax.cond(going, gather, lambda x: jnp.tile(x, N), x)
        total = lambda y: jax.lax.pcast(jax.lax.psum(y, "n"), "n", to="varying")  # noqa: E731
        return jax.lax.while_loop(lambda y: jnp.sum(y) < 9, total, y)

    found = _over_nodes(branch, jax.P("n"))
    kinds = [(r.kind, r.times) for r in found.rows]
    assert ("all-gather", 1) in kinds and ("all-reduce", None) in kinds, found.text()
    assert "loops of unknown length" in found.text()


def test_the_programs_of_this_project():
    """The whole model hands nobody complete state; a layer ends with the compatibility gather."""
    weights = {"embed": Table, r"args\[0\]": Weight, r"args\[1\]": State}
    whole = handed_by(honest(**WHOLE)[0], (), weights | {".": Public})
    layer = handed_by(honest()[0], (), weights | {r"args\[2\]": State, ".": Public})
    assert whole.ok and {r.after.what for r in whole.rows} == {"own shard", "statistic"}
    *inside, gather = layer.rows
    assert {r.after.what for r in inside} == {"own shard", "statistic"}
    assert not any(r.before.whole for r in layer.rows) and gather.after.what == "complete"


def test_the_answer_as_data():
    found = _over_nodes(lambda x, up, down: _scatter(x @ up), SHARDS)
    data = found.as_dict()
    assert data["rows"][0]["after"]["what"] == "own shard" and data["nodes"] == N
    assert not any(word in found.text() for word in ("Digit", "Part(", "OPAQUE", "Kind."))


def test_a_text_says_the_same_as_the_compiled_program(tmp_path):
    arguments = _array(GRID, (B, D), "data", None), _array(GRID, (D, F), None, "n")
    lowered = jax.jit(lambda x, w_up, w_down: (x @ w_up) @ w_down).lower(
        *arguments, _array(GRID, (F, D), "n", None)
    )
    compiled = lowered.compile()
    (tmp_path / "program.hlo").write_text(compiled.as_text())
    forms = lowered, compiled, compiled.as_text(), tmp_path / "program.hlo"
    first, *others = (audit.handed(form, ROLES) for form in forms)
    assert all(other == first for other in others) and len(first.rows) == 1


def test_layouts_that_the_program_does_not_note():
    """As newer compilers print it: JAX then knows how the inputs of a compiled program lie."""
    arguments = _array(GRID, (B, D), "data", None), _array(GRID, (D, F), ("n", "data"))
    compiled = jax.jit(lambda x, w_up: x @ w_up).lower(*arguments).compile()
    text, noted = compiled.as_text(), jax.tree.leaves(compiled.input_shardings)
    bare = re.sub(r", sharding=\{[^}]*\}", "", text)
    assert bare != text and handed_by(bare, noted, ROLES).rows
    assert handed_by(bare, noted, ROLES) == audit.handed(compiled, ROLES)
    with pytest.raises(Unauditable, match="hand in what"):
        audit.handed(bare, ROLES)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"x": State}, "none for w_up"),
        ({"(": State}, "regular expression"),
        ({".": Weight}, "a State or a Table"),
        ({".": audit.Complete}, "State, Weight, Table or Public"),
        ({".": "state"}, "State, Weight, Table or Public"),
    ],
)
def test_roles_that_do_not_fit(roles, message):
    arguments = _array(NODES, (B, D)), _array(NODES, (D, F), None, "n")
    with pytest.raises(Unauditable, match=message):
        _say(lambda x, w_up: x @ w_up, *arguments, roles=roles)
