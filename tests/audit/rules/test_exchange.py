"""Which numbers found in a node's own logits may be told to the others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import OPAQUE, Axis, Digit, Part
from fcjax.audit.domain.roles import Public, State, Weight
from fcjax.audit.domain.values import Found, Product, Reduced
from fcjax.audit.rules.exchange import Declared, Exchanges
from tests.audit.made import array, made

LOGITS = made(State, "logits", "BV", (3, 12), "V")
V = Axis("V", 12, split=True)
b, v = Digit(3, Part(Axis("B", 3), 1)), Digit(12, Part(V, 1))
SOURCE = ("logits",)
BEST = Declared(0, "best", "max", "f32", 3, frozenset({SOURCE}), False)
MASS = Declared(1, "mass", "add", "f32", 3, frozenset({SOURCE, BEST.found}), False)
COUNT = Declared(2, "count", "add", "s32", 3, frozenset({SOURCE, BEST.found}), False)
TOKEN = Declared(3, "token", "min", "s32", 3, frozenset({SOURCE, BEST.found, COUNT.found}), True)
ALL = (BEST, MASS, COUNT, TOKEN)


def number(*dims, combine="max", gone=(v,), dtype="f32", reads=(SOURCE,)):
    """What a node has found in its logits; one a row unless dimensions are given."""
    dims = dims or (b,)
    return LOGITS.replace(
        shape=array(*(x.size for x in dims), dtype=dtype),
        dims=tuple(dg.join([x]) for x in dims),
        sum=None,
        reads=frozenset(reads),
        reduced=Reduced(combine, tuple(gone)),
    )


def take(*declared, combine="max", **facts):
    return Exchanges(declared).take(number(combine=combine, **facts), combine)


def test_what_an_exchange_has_found():
    assert BEST.found == Found(0, "best")


@pytest.mark.parametrize(
    ("operand", "concerned"),
    [
        (LOGITS, True),
        (LOGITS.replace(reads=frozenset({("x",), BEST.found})), True),
        (LOGITS.replace(reads=frozenset({("x",), SOURCE})), True),
        (LOGITS.replace(reads=frozenset({("x",)})), False),
        (LOGITS.replace(reads=frozenset({TOKEN.found})), False),  # the last: it is public
        (made(Public, "logits", "BV", (3, 12)), False),
        (made(Weight, "logits", "BV", (3, 12), "V").replace(reads=LOGITS.reads), False),
    ],
)
def test_whom_it_concerns(operand, concerned):
    assert Exchanges(ALL).concerns(operand) is concerned
    assert not Exchanges().concerns(operand)


def test_what_was_taken_still_concerns():
    exchanges = Exchanges((BEST,))
    exchanges.take(number(), "max")
    assert exchanges.left == [] and exchanges.concerns(LOGITS)


def test_each_is_taken_once_and_the_token_at_the_end():
    exchanges = Exchanges(ALL)
    token = number(combine="min", dtype="s32", reads=TOKEN.reads)
    assert exchanges.take(token, "min")[0] is None
    # The others as the program has them: nothing but their own facts says when.
    count = number(combine="add", dtype="s32", reads=[SOURCE])
    assert exchanges.take(count, "add") == (COUNT, None)
    assert exchanges.take(number(), "max") == (BEST, None)
    again = exchanges.take(number(), "max")
    assert again == (
        None,
        ("wrong-reduction", "mass: expected add, got max of f32 with 3 elements"),
    )
    assert exchanges.left == [MASS, TOKEN]
    assert exchanges.take(token, "min")[1][0] == "unplanned-collective"
    mass = number(combine="add", reads=MASS.reads)
    assert exchanges.take(mass, "add") == (MASS, None)
    assert exchanges.take(token, "min") == (TOKEN, None)
    assert exchanges.left == []
    assert exchanges.take(token, "min")[1][0] == "unplanned-collective"


def test_equal_ones_are_taken_in_the_order_of_the_contract():
    """A second count may depend on the first; as the first, it would be a use of another value."""
    first = Declared(0, "first", "add", "s32", 3, frozenset({SOURCE}), False)
    second = Declared(1, "second", "add", "s32", 3, frozenset({SOURCE, first.found}), False)
    plain = number(combine="add", dtype="s32")
    later = number(combine="add", dtype="s32", reads=second.reads)
    exchanges = Exchanges((first, second))
    assert exchanges.take(later, "add") == (
        None,
        ("wrong-source", "first: it also depends on first (0)"),
    )
    assert exchanges.left == [first, second]
    assert exchanges.take(plain, "add") == (first, None)
    assert exchanges.take(later, "add") == (second, None)


def test_what_else_it_depends_on():
    fault = take(BEST, reads=[SOURCE, ("x", "y"), MASS.found])[1]
    assert fault == ("wrong-source", "best: it also depends on mass (1), x + y")


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        (
            dict(combine="max", dtype="s32"),
            ("unplanned-collective",
             "the contract has no (further) exchange by max of s32 with 3 elements"),
        ),
        (
            dict(combine="min"),
            ("wrong-reduction", "best: expected max, got min of f32 with 3 elements"),
        ),
    ],
)
def test_another_than_declared(facts, fault):
    exchanges = Exchanges((BEST,))
    assert exchanges.take(number(**facts), facts["combine"]) == (None, fault)
    assert exchanges.left == [BEST]


def test_another_size_than_declared():
    wide = number(b, Digit(2, Part(Axis("K", 2), 1)))
    fault = "wrong-size", "best: expected 3 elements, got max of f32 with 6 elements"
    assert Exchanges((BEST,)).take(wide, "max") == (None, fault)
    assert Exchanges((BEST,)).take(number(Digit(1)), "max")[1][0] == "wrong-size"
    assert Exchanges((COUNT, MASS, BEST)).take(wide, "max")[1] == fault
    other = wide.replace(shape=array(3, 2, dtype="s32"))
    assert Exchanges((BEST,)).take(other, "max")[1][0] == "unplanned-collective"


ONE = Declared(0, "best", "max", "f32", 1, frozenset({SOURCE}), True)


@pytest.mark.parametrize(
    "operand",
    [
        number(Digit(1)),
        number(Digit(1), gone=(b, v)),
        number(Digit(1), gone=dg.split(v, 4)[::-1]),
        number(Digit(1), gone=(Digit(5), v)),
        number(Digit(1), gone=dg.enclose((v,), 4)),
        number(Digit(1), gone=(dg.split(v, 4)[0], *dg.enclose(dg.split(v, 4)[1:], 2))),
    ],
)
def test_combined_from_all_logits(operand):
    assert Exchanges((ONE,)).take(operand, "max") == (ONE, None)


HIGH, LOW = dg.split(v, 4)
OTHER = Digit(12, Part(Axis("W", 12, split=True), 1))


@pytest.mark.parametrize(
    ("operand", "combine", "fault"),
    [
        (number(v), "max", ("hidden-gather", "coordinates of the logits run along it")),
        (number(b, LOW), "max", ("hidden-gather", "coordinates of the logits run along it")),
        (number(Digit(3, OPAQUE)), "max", ("hidden-gather", "coordinates of the logits run")),
        (number().replace(reduced=None), "max", ("not-an-exchange", "not combined from all")),
        (
            number().replace(product=Product("w", None, (Digit(12, v.state, v.state),))),
            "max", ("not-an-exchange", "it is not combined from all of the node's logits"),
        ),
        (number(), "add", ("wrong-reduction", "combines its own by max, the nodes by add")),
        (number(), "", ("wrong-reduction", "by max, the nodes by something else")),
        (number(combine=""), "", ("wrong-reduction", "by , the nodes by something else")),
        (number(gone=()), "max", ("not-an-exchange", "it is not combined over the split axis")),
        (number(gone=(b,)), "max", ("not-an-exchange", "not combined over the split axis")),
        (
            number(gone=(v, Digit(2, OPAQUE))),
            "max", ("not-an-exchange", "not combined over the split axis"),
        ),
        (number(gone=(HIGH,)), "max", ("not-an-exchange", "not combined over all of V_n(12)")),
        (number(gone=dg.enclose((LOW,), 2)), "max", ("not-an-exchange", "over all of V_n(12)")),
        (number(gone=(LOW, LOW)), "max", ("not-an-exchange", "not combined over all of V_n(12)")),
        (number(gone=(v, OTHER)), "max", ("not-an-exchange", "not combined over all of")),
        (
            number(gone=(LOW, Digit(3, Part(OTHER.state.axis, 4)))),
            "max", ("not-an-exchange", "not combined over all of"),
        ),
    ],
)
def test_not_combined_from_all_logits(operand, combine, fault):
    taken, (code, words) = Exchanges((BEST,)).take(operand, combine)
    assert taken is None and code == fault[0]
    assert fault[1] in words


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_runs_of_logits_in_any_order(data):
    """All pieces of the vocabulary, or all but one."""
    minors = data.draw(st.sampled_from([(2,), (6,), (2, 2), (2, 3), (3, 2)]))
    pieces, digit = [], v
    for minor in minors:
        digit, low = dg.split(digit, minor)
        pieces.append(low)
    pieces = data.draw(st.permutations([*pieces, digit]))
    assert take(BEST, gone=pieces) == (BEST, None)
    lost = data.draw(st.integers(0, len(pieces) - 1))
    assert take(BEST, gone=pieces[:lost] + pieces[lost + 1 :])[1][0] == "not-an-exchange"
