"""Rows of a table: which of them are the state that the table declares."""

import pytest

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import OPAQUE, Axis, Digit, Part
from fcjax.audit.domain.roles import Public, State, Table, Weight, tensor
from fcjax.audit.domain.values import Kind
from fcjax.audit.rules import lookup
from tests.audit.made import array, instruction, made, results, value

EMBED = made(Table, "embed", "VD", (50, 12), "D")
TURNED = made(Table, "embed", "DV", (12, 50), "D")
CUBE = made(Table, "embed", "VKD", (50, 2, 12), "D")
IDS = made(Public, "ids", "BT", (3, 4))
V, D, K = Axis("V", 50), Axis("D", 12, split=True), Axis("K", 2)
b, t, d, k = (Digit(x.size, Part(x, 1)) for x in (Axis("B", 3), Axis("T", 4), D, K))
VOCABULARY, COLUMNS = EMBED.dims


def assert_rows(out, shape, dims):
    assert out is not None
    assert (out.kind, out.shape.dims, out.dims) == (Kind.STATE, shape, dims)
    assert (out.sum, out.reads) == (("residual",), {("residual",)})
    assert (out.origin, out.rows, out.product, out.complete) == ("", "", None, False)


def one(table, *shape):
    return lookup.dynamic_slice(instruction("dynamic-slice", *shape), table)


@pytest.mark.parametrize(
    ("table", "shape", "dims"),
    [
        (EMBED, (1, 12), ((), (d,))),
        (TURNED, (12, 1), ((d,), ())),
        (CUBE, (1, 2, 12), ((), (k,), (d,))),
        (made(Table, "embed", "VD", (50, 1), "D"), (1, 1), ((), ())),
        (made(Table, "embed", "VD", (50, 12)), (1, 12), ((), (Digit(12, Part(Axis("D", 12), 1)),))),
    ],
)
def test_one_row(table, shape, dims):
    assert_rows(one(table, *shape), shape, dims)


@pytest.mark.parametrize(
    ("table", "shape"),
    [
        (EMBED, (50, 12)),  # all rows
        (EMBED, (2, 12)),
        (EMBED, (50, 1)),  # one column of every row
        (EMBED, (1, 6)),
        (EMBED, (1, 1)),
        (CUBE, (1, 1, 12)),
        (CUBE, (50, 2, 1)),
        (made(Table, "embed", "VD", (50, 12), "V"), (1, 12)),  # the vocabulary is cut
    ],
)
def test_what_is_not_one_row(table, shape):
    assert one(table, *shape) is None


def numbers(**changes):
    """Those of rows of EMBED at ids [B, T]."""
    return {
        "offset_dims": (2,), "collapsed_slice_dims": (0,), "start_index_map": (0,),
        "index_vector_dim": 2, "operand_batching_dims": (), "start_indices_batching_dims": (),
        **changes,
    }


def gather(table=EMBED, index=IDS, shape=(3, 4, 12), sizes=(1, 12), **changes):
    i = instruction(
        "gather", *shape, gather_dimension_numbers=numbers(**changes), gather_slice_sizes=sizes
    )
    return lookup.gather(i, table, index)


def test_rows_in_the_order_of_their_indices():
    assert_rows(gather(), (3, 4, 12), ((b,), (t,), (d,)))


@pytest.mark.parametrize(
    ("case", "dims"),
    [
        (dict(shape=(12, 3, 4), offset_dims=(0,)), ((d,), (b,), (t,))),
        (dict(shape=(3, 12, 4), offset_dims=(1,)), ((b,), (d,), (t,))),
        # The dimension of the row stays, as size 1.
        (
            dict(shape=(3, 1, 4, 12), offset_dims=(1, 3), collapsed_slice_dims=()),
            ((b,), (), (t,), (d,)),
        ),
        # The indices stand in a dimension of their own.
        (
            dict(index=made(Public, "ids", "BIT", (3, 1, 4)), index_vector_dim=1),
            ((b,), (t,), (d,)),
        ),
        (
            dict(index=made(Public, "ids", "I", (1,)), index_vector_dim=0, shape=(12,),
                 offset_dims=(0,)),
            ((d,),),
        ),
        (
            dict(table=TURNED, sizes=(12, 1), collapsed_slice_dims=(1,), start_index_map=(1,)),
            ((b,), (t,), (d,)),
        ),
        (
            dict(table=CUBE, sizes=(1, 2, 12), shape=(3, 2, 4, 12), offset_dims=(1, 3)),
            ((b,), (k,), (t,), (d,)),
        ),
        (
            dict(table=made(Table, "embed", "VKD", (50, 1, 12), "D"), sizes=(1, 1, 12),
                 collapsed_slice_dims=(0, 1)),
            ((b,), (t,), (d,)),
        ),
    ],
)
def test_other_spellings(case, dims):
    out = gather(**case)
    assert_rows(out, case.get("shape", (3, 4, 12)), dims)


@pytest.mark.parametrize(
    ("digit", "expected"),
    [
        (b, b),
        (Digit(3), Digit(3, OPAQUE)),
        (Digit(3, OPAQUE), Digit(3, OPAQUE)),
        (Digit(3, Part(Axis("B", 3, split=True), 1)), Digit(3, OPAQUE)),
    ],
)
def test_whose_rows_they_are(digit, expected):
    """Of indices in no known order, so are the rows."""
    index = IDS.replace(dims=((digit,), IDS.dims[1]))
    assert_rows(gather(index=index), (3, 4, 12), ((expected,), (t,), (d,)))


def test_whose_rows_they_are_in_part():
    """Neighbours without an order are joined."""
    index = IDS.replace(dims=((b,), (Digit(2), Digit(2, OPAQUE))))
    assert gather(index=index).dims[1] == (Digit(4, OPAQUE),)


@pytest.mark.parametrize(
    "case",
    [
        dict(index=made(State, "ids", "BT", (3, 4))),
        dict(index=made(Weight, "ids", "BT", (3, 4))),
        dict(sizes=(1, 6), shape=(3, 4, 6)),
        dict(sizes=(2, 12), shape=(3, 2, 4, 12), collapsed_slice_dims=(), offset_dims=(1, 3)),
        dict(sizes=(50, 1), shape=(3, 4, 50), start_index_map=(1,), collapsed_slice_dims=(1,)),
        dict(start_index_map=(), index_vector_dim=2),
        dict(start_index_map=(0, 1), index_vector_dim=1, shape=(3, 12), offset_dims=(1,)),
        dict(operand_batching_dims=(0,)),
        dict(start_indices_batching_dims=(0,)),
        dict(table=made(Table, "embed", "VD", (50, 12), "V")),
        dict(table=made(State, "x", "VD", (50, 12), "D")),
        dict(table=made(Table, "embed", "VD", (1, 12), "D")),  # there is nothing to look up
    ],
)
def test_what_is_not_rows(case):
    assert gather(**case) is None


HALF = dg.split(VOCABULARY[0], 25)
FUSED = dg.fuse([Digit(5, None, Part(Axis("P", 5), 1)), Digit(10, None, Part(Axis("Q", 10), 1))])


@pytest.mark.parametrize(
    "dims",
    [
        ((HALF[1], HALF[0]), COLUMNS),  # turned inside out
        ((Digit(50, None, Part(Axis("V", 100), 1)),), COLUMNS),  # the first half of a table
        ((Digit(50, None, Part(Axis("V", 100), 2)),), COLUMNS),
        ((Digit(50, None, Part(V, 2)),), COLUMNS),
        ((Digit(50, None, OPAQUE),), COLUMNS),
        ((Digit(50),), COLUMNS),
        ((Digit(50, VOCABULARY[0].weight, VOCABULARY[0].weight),), COLUMNS),
        ((FUSED,), COLUMNS),
        (dg.enclose((Digit(40, None, Part(Axis("V", 40), 1)),), 50, low=3), COLUMNS),  # padded
        (VOCABULARY, (Digit(12, None, OPAQUE),)),
        (VOCABULARY, (Digit(12),)),
        (VOCABULARY, (Digit(12, None, Part(Axis("D", 24, split=True), 1)),)),
        (VOCABULARY, (Digit(3, None, Part(D, 1)), Digit(4, None, Part(D, 3)))),
        (VOCABULARY, (Digit(3, None, Part(D, 1)), Digit(4, None, Part(D, 1)))),
        (VOCABULARY, dg.enclose((Digit(8, None, Part(Axis("D", 8, True), 1)),), 12, low=3)),
        (VOCABULARY, ()),
        ((), COLUMNS),
    ],
)
def test_what_is_no_table(dims):
    """Not one whole axis, as it was declared, along each dimension."""
    table = EMBED.replace(dims=dims)
    if dims[1]:
        assert gather(table) is None
        assert one(table, 1, 12) is None
    else:  # one column, which was broadcast away
        assert_rows(gather(table.replace(shape=array(50, 1)), sizes=(1, 1), shape=(3, 4, 1)),
                    (3, 4, 1), ((b,), (t,), ()))


ROLE = tensor(Table, "embed", "VD", (50, 12), "D", "f32")
PROGRAM = """HloModule m
ENTRY e {{
  t = f32[50,12] parameter(0)
  i = s32[3] parameter(1)
  {more}
  ROOT r = f32[3,12] gather({table}, i), offset_dims={{1}}, collapsed_slice_dims={{0}},
    start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,12}}
}}"""


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ("u = f32[50,12] copy(t)", "residual"),
        ("u = f32[50,12] reverse(t), dimensions={0}", None),
        ("u = f32[50,12] add(t, t)", None),
        ("s = f32[49,12] slice(t), slice={[0:49], [0:12]}  z = f32[] constant(0)"
         "  u = f32[50,12] pad(s, z), padding=1_0x0_0", None),
    ],
)
def test_in_a_program(more, state):
    (out,) = results(PROGRAM.format(more=more, table="u"), ROLE, tensor(Public, "ids", "B", (3,)))
    assert (out.kind, out.sum) == (Kind.STATE, state and (state,))


def test_rows_are_the_state_that_the_table_names():
    table = value(Table("embed", (V, D), "", "other"))
    assert gather(table).sum == ("other",)
    assert gather(table).reads == {("other",)}
    assert one(table, 1, 12).sum == ("other",)
