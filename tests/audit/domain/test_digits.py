"""Digits against numpy's own index arithmetic: they must say what runs along each dimension.

`labels` writes down, for every element of an array, its coordinate along each axis, as the digits
have it. The same arrays taken through numpy's reshape and transpose are what that must be.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import OPAQUE, Axis, Digit, Part

A, B, C = Axis("A", 12, split=True), Axis("B", 10), Axis("C", 9)


def whole(axis, field="state"):
    """The digits of a dimension along which one whole axis runs."""
    return (Digit(axis.size, **{field: Part(axis, 1)}),)


def pieces(digit, *minors):
    """The digit split several times, major to minor."""
    out = []
    for minor in minors:
        digit, low = dg.split(digit, minor)
        out.insert(0, low)
    return [digit, *out]


def depth(axis) -> int:
    """How often digits were fused to make it."""
    return 1 + max((depth(t.axis) for _, t in axis.parts if isinstance(t, Part)), default=-1)


def labels(dims, field="state") -> dict[Axis, np.ndarray]:
    """Coordinate of every element along each axis of which the digits know the order."""
    digits = [d for dim in dims for d in dim]
    grids = np.indices([d.size for d in digits])
    along: dict[Axis, np.ndarray] = {}

    def add(tag, values):
        if isinstance(tag, Part):
            along[tag.axis] = along.get(tag.axis, 0) + values * tag.stride

    for digit, values in zip(digits, grids, strict=True):
        add(getattr(digit, field), values)
    while fused := max((axis for axis in along if axis.parts), key=depth, default=None):
        values = along.pop(fused)
        for n, tag in reversed(fused.parts):
            values, low = np.divmod(values, n)
            add(tag, low)
    return {axis: values.reshape([dg.size(d) for d in dims]) for axis, values in along.items()}


def assert_labels(dims, expected):
    got = labels(dims)
    assert set(got) == set(expected)
    for axis, values in expected.items():
        np.testing.assert_array_equal(got[axis], values)


@st.composite
def dimensions(draw):
    """Up to four dimensions: axes of a plan, broadcasts and unknown orders."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    tags = st.sampled_from(["part", "part", None, OPAQUE])

    def tag(i, n):
        kind = draw(tags)
        return Part(Axis("ABCD"[i], n, split=i == 1), 1) if kind == "part" else kind

    return tuple(dg.join([Digit(n, tag(i, n))]) for i, n in enumerate(sizes))


def sizes_of(dims):
    return [dg.size(d) for d in dims]


@st.composite
def factors(draw, total):
    """Sizes whose product is `total`, some of them 1."""
    sizes = []
    while total > 1:
        n = draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
        sizes.append(n)
        total //= n
    return draw(st.permutations([*sizes, 1]))


@settings(deadline=None)
@given(st.data())
def test_reshapes_and_transposes(data):
    dims = data.draw(dimensions())
    expected = labels(dims)
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            sizes = data.draw(factors(math.prod(sizes_of(dims))))
            dims = dg.reshape(dims, sizes)
            expected = {axis: x.reshape(sizes) for axis, x in expected.items()}
        else:
            order = data.draw(st.permutations(range(len(dims))))
            dims = tuple(dims[d] for d in order)
            expected = {axis: x.transpose(order) for axis, x in expected.items()}
    assert_labels(dims, expected)


@settings(deadline=None)
@given(st.data())
def test_flat_and_back(data):
    dims = data.draw(dimensions())
    flat = dg.reshape(dims, [math.prod(sizes_of(dims))])
    assert dg.reshape(flat, sizes_of(dims)) == dims


@settings(deadline=None)
@given(st.data())
def test_bitcasts(data):
    """The bytes of an array in one layout, read as another shape in another layout."""
    dims = data.draw(dimensions())
    layout = data.draw(st.permutations(range(len(dims))))
    sizes = data.draw(factors(math.prod(sizes_of(dims))))
    new = data.draw(st.permutations(range(len(sizes))))
    major = new[::-1]
    expected = {
        axis: x.transpose(layout[::-1])
        .reshape([sizes[d] for d in major])
        .transpose(np.argsort(major))
        for axis, x in labels(dims).items()
    }
    assert_labels(dg.bitcast(dims, layout, sizes, new), expected)


TAGS = st.sampled_from([None, OPAQUE, Part(A, 1), Part(A, 5), Part(B, 2)])


@settings(deadline=None)
@given(TAGS, TAGS, st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_what_is_split_joins_again(state, weight, minors):
    digit = Digit(2 * math.prod(minors), state, weight)
    assert dg.join(pieces(digit, *minors)) == (digit,)


def test_join_leaves_apart_what_does_not_continue():
    major, minor = dg.split(*whole(A), 4)
    for digits in ([minor, major], [major, Digit(4, Part(B, 1))], [major, Digit(2, Part(A, 1))]):
        assert dg.join(digits) == tuple(digits)
    assert dg.join([Digit(1, Part(A, 3)), Digit(1)]) == ()
    assert dg.join([Digit(2), Digit(3), Digit(2, OPAQUE), Digit(2, OPAQUE)]) == (
        Digit(6),
        Digit(4, OPAQUE),
    )


@settings(deadline=None)
@given(st.data())
def test_fused_digits_are_one_digit_with_the_same_coordinates(data):
    digits = [d for dim in data.draw(dimensions()) for d in dim]
    fused = dg.fuse(digits)
    assert fused.size == dg.size(digits)
    expected = {axis: x.reshape(-1) for axis, x in labels([digits]).items()}
    assert_labels([[fused]], expected)
    assert dg.join([fused]) == dg.join(digits)


def test_what_a_fused_axis_is_called():
    fused = dg.fuse([*whole(A), Digit(2), Digit(3, OPAQUE)])
    axis = fused.state.axis
    assert (str(axis), axis.split, fused.weight) == ("A*None*?_n(72)", True, None)
    assert dg.fuse([Digit(2, OPAQUE), Digit(3, OPAQUE)]) == Digit(6, OPAQUE)
    assert dg.fuse([Digit(2), Digit(3)]) == Digit(6)
    assert not dg.fuse([*whole(B), *whole(C)]).state.axis.split


def test_a_part_of_a_fused_axis_stays_one():
    """Only the whole of it is known to be its parts in order."""
    fused = dg.fuse([Digit(4, Part(A, 1)), Digit(3, Part(B, 1))])
    major, minor = dg.split(fused, 2)
    assert dg.join([minor]) == (minor,)
    assert dg.join([minor, major]) == (minor, major)
    assert dg.join([major, minor]) == (Digit(4, Part(A, 1)), Digit(3, Part(B, 1)))


def test_a_fused_weight_beside_a_state():
    """The state that runs along a fused weight is split as the weight is."""
    weight = dg.fuse([Digit(4, weight=Part(B, 1)), Digit(3, weight=Part(C, 1))])
    for state, parts in (
        (Part(A, 1), (Part(A, 3), Part(A, 1))),
        (OPAQUE, (OPAQUE, OPAQUE)),
        (None, (None, None)),
    ):
        got = dg.join([Digit(12, state, weight.weight)])
        assert got == (Digit(4, parts[0], Part(B, 1)), Digit(3, parts[1], Part(C, 1)))
    state = dg.fuse([Digit(6, Part(B, 1)), Digit(2, Part(C, 1))]).state
    both = Digit(12, state, weight.weight)
    assert dg.join([both]) == (both,)  # cut at different places


@settings(deadline=None)
@given(st.data())
def test_two_spellings_of_a_dimension_are_aligned(data):
    total = data.draw(st.sampled_from([1, 12, 30, 36]))
    spellings = [
        [Digit(n, Part(Axis(f"{name}{i}", n), 1)) for i, n in enumerate(data.draw(factors(total)))]
        for name in "XY"
    ]
    a, b = (dg.join(s) for s in spellings)
    pairs = dg.align(a, b)
    assert all(x.size == y.size for x, y in pairs)
    for digits, side in zip((a, b), zip(*pairs, strict=True) if pairs else ((), ()), strict=True):
        assert_labels([side], labels([digits]))


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        (None, None, None),
        (Part(A, 1), None, Part(A, 1)),
        (None, Part(A, 1), Part(A, 1)),
        (Part(A, 1), Part(A, 1), Part(A, 1)),
        (Part(A, 1), Part(A, 2), OPAQUE),
        (Part(A, 1), Part(B, 1), OPAQUE),
        (Part(A, 1), OPAQUE, OPAQUE),
        (OPAQUE, None, OPAQUE),
    ],
)
def test_merge(a, b, result):
    assert dg.merge(a, b) == result
    assert dg.merge(b, a) == result


@settings(deadline=None)
@given(dimensions())
def test_a_value_with_itself_and_with_a_constant(dims):
    assert dg.unify(dims, dims) == dims
    constant = tuple(dg.join([Digit(n)]) for n in sizes_of(dims))
    assert dg.unify(dims, constant) == dg.unify(constant, dims) == dims


def test_unify_loses_only_what_differs():
    halves = (dg.split(*whole(A), 3),)
    mixed = ((dg.split(*whole(A), 3)[0], Digit(3, Part(C, 1))),)
    assert dg.unify(halves, mixed) == ((dg.split(*whole(A), 3)[0], Digit(3, OPAQUE)),)
    with pytest.raises(ValueError, match="zip"):
        dg.unify((whole(A),), (whole(A), whole(B)))


@settings(deadline=None)
@given(st.data())
def test_collected_pieces_continue_one_another(data):
    minors = data.draw(st.lists(st.sampled_from([2, 3]), min_size=1, max_size=2))
    axes = Axis("A", 36), Axis("B", 36, split=True)
    digits = [piece for axis in axes for piece in pieces(*whole(axis), *minors)]
    got = dg.collect(data.draw(st.permutations(digits)), "state")
    assert sorted(got, key=lambda d: d.state.axis.name) == [d for axis in axes for d in whole(axis)]


def test_pieces_that_do_not_continue_stay_apart():
    high, middle, low = pieces(*whole(A), 2, 3)
    assert dg.collect([low, high], "state") == (high, low)
    assert dg.collect([low, low], "state") == (low, low)
    assert dg.collect([low, Digit(2, OPAQUE), high, middle], "state") == (
        *whole(A),
        Digit(2, OPAQUE),
    )


def test_runs_are_opened_when_all_of_them_are_there():
    """Twelve coordinates summed in four runs of three: only the four together are the axis."""
    runs = dg.enclose(whole(A), 4)
    high, low = dg.split(*runs, 2)
    assert dg.collect([low, high], "state") == whole(A)
    assert dg.collect([low], "state") == (low,)
    nested = dg.enclose(runs, 2)
    assert dg.collect(nested, "state") == whole(A)


@pytest.mark.parametrize("field", ["state", "weight"])
def test_padding_is_taken_off_where_it_stands(field):
    digits = (*whole(A, field), *whole(B, field))
    padded = dg.enclose(digits, 125, low=2)
    (digit,) = padded
    tag = getattr(digit, field)
    assert (digit.size, str(tag.axis), tag.stride) == (125, "A*B'_n(125)", 1)
    assert dg.uncover(padded, 2, 120) == digits
    assert dg.uncover(padded, 0, 120) is None
    assert dg.uncover(padded, 2, 119) is None
    assert dg.uncover(digits, 0, 120) is None
    assert dg.uncover((), 0, 1) is None
    assert dg.uncover(dg.split(digit, 5), 2, 120) is None


def test_state_and_weight_that_were_padded_alike():
    """A product of two padded values is opened if both stand at the same place."""

    def padded(axis, field, low):
        return dg.enclose(whole(axis, field), 14, low)[0]

    other = Axis("W", 12)
    state = padded(A, "state", 1).state
    product = Digit(14, state, padded(other, "weight", 1).weight)
    assert dg.uncover([product], 1, 12) == (Digit(12, Part(A, 1), Part(other, 1)),)
    for weight in (padded(other, "weight", 2), padded(C, "weight", 1)):
        assert dg.uncover([Digit(14, state, weight.weight)], 1, 12) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(2, 4)), max_size=3), st.integers(1, 24))
def test_covers_random_parts(parts, n):
    assert dg.covers(parts, Axis("A", n)) == (reached(parts) == list(range(n)))


@settings(deadline=None)
@given(st.data())
def test_covers_pieces(data):
    sizes = data.draw(st.lists(st.integers(2, 4), max_size=4))
    parts = [(math.prod(sizes[:i]), n) for i, n in enumerate(sizes)]
    axis = Axis("A", math.prod(sizes))
    assert dg.covers(data.draw(st.permutations(parts)), axis)
    assert reached(parts) == list(range(axis.size))
    if parts:
        lost = data.draw(st.integers(0, len(parts) - 1))
        assert not dg.covers(parts[:lost] + parts[lost + 1 :], axis)
        assert not dg.covers([*parts, parts[lost]], axis)


def reached(parts):
    """Every coordinate that the parts run through, as often as they do."""
    steps = [range(0, stride * n, stride) for stride, n in parts]
    return sorted(map(sum, itertools.product(*steps)))


def test_runs_of_an_axis():
    axis = Axis("F", 10)
    low, high = dg.run_of(axis, 0, 4), dg.run_of(axis, 4, 6)
    assert (low.run, high.run, str(high)) == ((0, 10), (4, 10), "F[4:10](6)")
    assert dg.run_of(high, 1, 2).run == (5, 10)
    assert dg.following(low, high) == axis
    assert dg.following(high, low) is dg.following(low, low) is dg.following(axis, axis) is None
    assert dg.following(low, dg.run_of(Axis("F", 11), 4, 7)) is None
    assert dg.are_apart(low, high) and dg.are_apart(high, low)
    assert not dg.are_apart(low, dg.run_of(axis, 3, 2))
