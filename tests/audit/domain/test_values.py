"""What is known of a value, and what is left of it after something unknown was done."""

import pytest

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import OPAQUE, Axis, Digit, Part
from fcjax.audit.domain.roles import Public, State, Table, Weight
from fcjax.audit.domain.values import (
    CONSTANT,
    Found,
    Kind,
    Product,
    Reduced,
    Statistic,
    Trail,
    is_split,
    leaves,
    mixed,
    public,
    words,
)
from tests.audit.made import array, instruction, made

X = made(State, "x", "BD", (3, 12), "D")
Y = made(State, "y", "BD", (3, 12), "D")
W = made(Weight, "w", "DF", (12, 10), "D")
EMBED = made(Table, "embed", "VD", (50, 12), "D")
IDS = made(Public, "ids", "B", (3,))
ONE = public(array(), CONSTANT)
TABLE_USE = "a use of embed that looks up no whole rows"


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (("x",), "x"),
        (("layers.0.out", "x"), "layers.0.out + x"),
        (Statistic(("x", "y")), "sum of squares of x + y"),
        (Found(2, "threshold"), "threshold (2)"),
    ],
)
def test_words(read, expected):
    assert words(read) == expected


def test_a_trail_is_told_from_its_start():
    first, second = instruction("add", 3), instruction("copy", 3)
    assert Trail(second, Trail(first, None)).names() == ["add %i", "copy %i"]


def test_leaves_of_nested_tuples():
    assert leaves(X) == [X]
    assert leaves((X, (), ((Y,), W))) == [X, Y, W]


def test_a_public_value_has_no_state_along_it():
    value = public(array(1, 4, 3), "somewhere")
    assert (value.kind, value.origin) == (Kind.PUBLIC, "somewhere")
    assert value.dims == ((), (Digit(4),), (Digit(3),))
    assert not value.reads and value.sum is None


@pytest.mark.parametrize(
    ("operands", "kind", "origin"),
    [
        ([], Kind.PUBLIC, "iota"),
        ([ONE, ONE], Kind.PUBLIC, CONSTANT),
        ([ONE, IDS], Kind.PUBLIC, "public input ids"),
        ([IDS, W, ONE], Kind.PUBLIC, "a value computed from weight w"),
        ([X, W, IDS], Kind.STATE, ""),
        ([ONE, EMBED], Kind.STATE, TABLE_USE),
        ([X, EMBED, Y.replace(origin="a sort")], Kind.STATE, TABLE_USE),
        ([X, Y.replace(origin="a sort")], Kind.STATE, "a sort"),
    ],
)
def test_of_what_a_mixture_is_made(operands, kind, origin):
    value = mixed(instruction("iota", 5), array(5, 1), operands)
    assert (value.kind, value.origin) == (kind, origin)
    assert value.dims == ((Digit(5, OPAQUE if kind is Kind.STATE else None),), ())
    assert (value.sum, value.product, value.reduced) == (None, None, None)


def test_a_mixture_is_a_function_of_all_that_went_in():
    state = X.replace(reads=X.reads | {Statistic(("x",))}, trail=Trail(instruction("add", 3), None))
    last = instruction("sort", 3)
    value = mixed(last, array(3), [IDS, state, Y.replace(complete=True), EMBED])
    assert value.reads == {("x",), Statistic(("x",)), ("y",), ("residual",)}
    assert value.complete and value.trail.names() == ["add %i", "sort %i"]
    assert not mixed(last, array(3), [X, Y]).complete
    assert mixed(last, array(3), [EMBED]).trail.names() == ["sort %i"]


def test_a_plain_value_stays_as_it_is():
    for value in (X, W, IDS):
        assert value.plain() is value


def test_a_product_that_is_no_contraction_is_a_mixture_of_coordinates():
    """What only the weight told apart is in no known order; what the state did still is."""
    b, d, f = Part(Axis("B", 3), 1), Part(Axis("D", 12, True), 1), Part(Axis("F", 10), 1)
    dims = ((Digit(3, b),), (Digit(12, d, d),), (Digit(10, None, f),), (Digit(2),))
    product = X.replace(dims=dims, product=Product("w", None))
    plain = product.plain()
    assert (plain.product, plain.reads) == (None, X.reads)
    assert plain.dims == ((Digit(3, b),), (Digit(12, d),), (Digit(10, OPAQUE),), (Digit(2),))
    twice = product.replace(dims=(*dims[:2], (Digit(5, None, b), Digit(2, None, f)), dims[3]))
    assert twice.plain().dims == plain.dims


def test_runs_that_were_combined_are_a_mixture_of_coordinates():
    runs = dg.enclose(X.dims[1], 4)
    value = X.replace(dims=(X.dims[0], runs), reduced=Reduced("max", ())).plain()
    assert value.reduced is None
    assert value.dims == (X.dims[0], (Digit(4, OPAQUE),))
    # Where the sum is a product's, it is the product that has been summed in runs.
    product = X.replace(dims=(X.dims[0], runs), product=Product(None, ("x",))).plain()
    assert product.dims == (X.dims[0], runs)


@pytest.mark.parametrize(
    ("tag", "split"),
    [
        (None, False),
        (OPAQUE, False),
        (Part(Axis("B", 3), 1), False),
        (Part(Axis("D", 12, split=True), 4), True),
    ],
)
def test_is_split(tag, split):
    assert is_split(tag) is split
