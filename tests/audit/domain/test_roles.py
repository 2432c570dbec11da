"""What a caller says about a program's inputs and results."""

import collections

import pytest

from fcjax.audit.domain.digits import Axis, Digit, Part
from fcjax.audit.domain.roles import (
    Complete,
    Public,
    Signature,
    State,
    Table,
    Tensor,
    Weight,
    signature,
    tensor,
)

B, D = Axis("B", 3), Axis("D", 12, split=True)
X = State("x", (B, D))


@pytest.mark.parametrize("kind", [State, Weight, Table, Public, Complete])
def test_a_role_from_letters(kind):
    role = tensor(kind, "x", "BD", (3, 12), "D", "bf16")
    assert role == kind("x", (B, D), "bf16")
    assert type(role) is kind and isinstance(role, Tensor)
    assert (role.shape, role.split, role.dtype) == ((3, 12), D, "bf16")


def test_what_need_not_be_said():
    role = tensor(Public, "ids", ["B"], [3])
    assert (role.axes, role.split, role.dtype) == ((B,), None, "")
    assert (tensor(Public, "one", "", ()).shape, tensor(Public, "one", "", ()).axes) == ((), ())
    assert tensor(Table, "embed", "VD", (50, 12), "D").rows == "residual"
    assert Table("embed", (D,), "f32", "other").rows == "other"


def test_kinds_of_the_same_axes_are_different():
    assert State("x", (B, D)) != Weight("x", (B, D))
    kinds = State, Weight, Table, Public, Complete
    assert len({kind("x", (B, D)) for kind in kinds}) == 5
    related = [(a, b) for a in kinds for b in kinds if a is not b and isinstance(a("x", ()), b)]
    assert related == [(Table, Weight)]


@pytest.mark.parametrize("split", [0, 1, 2])
def test_the_split_axis_wherever_it_stands(split):
    axes = tuple(Axis(name, 4, name == "ABC"[split]) for name in "ABC")
    assert Weight("w", axes).split is axes[split]


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ((B, Axis("B", 4)), r"x: expected axes of different names, got \['B', 'B'\]"),
        ((D, B, Axis("D", 12)), r"x: expected axes of different names, got \['D', 'B', 'D'\]"),
        ((D, Axis("E", 4, split=True)), "x: expected at most one split axis, got"),
        ((D, B, Axis("E", 1, split=True)), "x: expected at most one split axis, got"),
    ],
)
@pytest.mark.parametrize("kind", [State, Table])
def test_axes_that_are_no_role(kind, axes, words):
    with pytest.raises(ValueError, match=words):
        kind("x", axes)


@pytest.mark.parametrize("shape", [(3,), (3, 12, 1)])
def test_as_many_letters_as_sizes(shape):
    with pytest.raises(ValueError, match="zip"):
        tensor(State, "x", "BD", shape)


@pytest.mark.parametrize("field", ["state", "weight"])
def test_digits(field):
    role = tensor(Weight, "w", "ABCD", (1, 3, 1, 12), "D")
    a, b, c, d = (Part(axis, 1) for axis in role.axes)
    assert role.digits(field) == ((), (Digit(3, **{field: b}),), (), (Digit(12, **{field: d}),))
    assert Public("one", ()).digits(field) == ()


def test_a_signature_is_flat_as_jax_flattens():
    y, w, ids = tensor(State, "y", "B", (3,)), tensor(Weight, "w", "D", (12,)), Public("ids", ())
    Pair = collections.namedtuple("Pair", "second first")
    got = signature(2, [{"b": X, "a": w}, (ids, None)], Pair(y, [X]))
    assert got == Signature(2, (w, X, ids), (y, X))
    assert signature(3, (), X) == Signature(3, (), (X,))


def test_a_square_weight_has_one_letter_twice():
    w = tensor(Weight, "w", "DD", (4, 8), 0)
    assert [(a.name, a.size, a.split) for a in w.axes] == [("D", 4, True), ("D", 8, False)]
    with pytest.raises(ValueError, match="different names"):
        tensor(Weight, "w", "DDF", (4, 4, 8), "F")
