"""Products, their sums, and what must be summed before a value may leave a node."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import OPAQUE, Axis, Digit, Part
from fcjax.audit.domain.roles import Public, State, Weight, tensor
from fcjax.audit.domain.values import Kind, Product, Reduced
from fcjax.audit.hlo.graph import Unauditable
from fcjax.audit.rules import contraction
from tests.audit.made import array, computation, instruction, made, value

ROLES = {
    "w": tensor(Weight, "w", "DF", (12, 10), "D"),
    "thin": tensor(Weight, "thin", "DF", (12, 1), "D"),
    "scale": tensor(Weight, "scale", "DF", (1, 10), "D"),
    "heads": tensor(Weight, "heads", "KDF", (2, 12, 10), "D"),
}
X = made(State, "x", "BD", (3, 12), "D")
Y = made(State, "y", "BD", (3, 12), "D")
W = value(ROLES["w"])
MASK = made(Public, "mask", "CB", (5, 3))
B, D, E, F = Axis("B", 3), Axis("D", 12, True), Axis("E", 12, True), Axis("F", 10)
b, d, e, f = (Part(axis, 1) for axis in (B, D, E, F))
ROWS, COLUMNS = Digit(3, b), Digit(10, None, f)


def combiner(root, parameters="f32[]", more="", names="xy"):
    first, second = names
    return computation(f"""HloModule m
ENTRY e {{
  {first} = {parameters} parameter(0)
  {second} = {parameters} parameter(1)
  {more}
  ROOT r = {root}
}}""")


@pytest.mark.parametrize(
    ("expected", "body"),
    [
        ("add", combiner("f32[] add(x, y)")),
        ("add", combiner("f32[] add(x, y)", names="yx")),
        ("max", combiner("f32[] maximum(x, y)")),
        ("min", combiner("s32[] minimum(x, y)", "s32[]")),
        ("", combiner("f32[] multiply(x, y)")),
        ("", combiner("f32[] subtract(x, y)")),
        ("", combiner("f32[] add(x, x)")),
        ("", combiner("f32[] negate(x)")),
        ("", combiner("f32[] copy(x)")),
        ("", combiner("f32[] add(x, c)", more="c = f32[] constant(1)")),
        ("", combiner("f32[] add(x, n)", more="n = f32[] negate(y)")),
        ("", combiner("f32[] add(n, y)", more="n = f32[] negate(x)")),
        ("", combiner("f32[] add(x, y)", more="z = f32[] parameter(2)")),
        (
            "add",
            combiner(
                "bf16[] convert(s)",
                "bf16[]",
                "a = f32[] convert(x)  b = f32[] convert(y)  s = f32[] add(a, b)",
            ),
        ),
        # Rounded to integers on the way.
        ("", combiner("s32[] add(x, c)", "f32[]", "c = s32[] convert(y)")),
        ("", combiner("f32[] convert(s)", "s32[]", "s = s32[] add(x, y)")),
    ],
)
def test_combines(expected, body):
    assert contraction.combines(body) == expected


def beside(*dims):
    """State along these digits, and the weight along them."""
    state = tuple((Digit(x.size, x.state),) for x in dims)
    weight = tuple((Digit(x.size, None, x.weight),) for x in dims)
    shape = array(*(x.size for x in dims))
    return X.replace(dims=state, shape=shape), W.replace(dims=weight, shape=shape)


@pytest.mark.parametrize("turn", [1, -1])
def test_a_product_pairs_the_digits_of_state_and_weight(turn):
    operands = beside(ROWS, Digit(12, d, d), COLUMNS)
    product = contraction.multiply(instruction("multiply", 3, 12, 10), *operands[::turn])
    assert product.dims == ((ROWS,), (Digit(12, d, d),), (COLUMNS,))
    assert (product.kind, product.product) == (Kind.STATE, Product("w", None))
    assert (product.sum, product.reads, product.shape.dims) == (None, {("x",)}, (3, 12, 10))
    assert product.trail.names() == ["multiply %i"]


def test_a_product_of_different_spellings():
    """The weight is stored as (4, 3), the state as 12: the pairs are split alike."""
    high, low = Part(Axis("P", 4), 1), Part(Axis("Q", 3), 1)
    state, weight = beside(Digit(12, d))
    weight = weight.replace(dims=((Digit(4, None, high), Digit(3, None, low)),))
    product = contraction.multiply(instruction("multiply", 12), state, weight)
    assert product.dims == ((Digit(4, Part(D, 3), high), Digit(3, d, low)),)


@pytest.mark.parametrize("turn", [1, -1])
def test_a_product_with_a_second_weight_starts_anew(turn):
    """Where only the first one varied, the state is a mixture."""
    state, weight = beside(ROWS, COLUMNS)
    first = contraction.multiply(instruction("multiply", 3, 10), state, weight)
    second = contraction.multiply(instruction("multiply", 3, 10), *(first, weight)[::turn])
    assert second.dims == ((ROWS,), (Digit(10, OPAQUE, f),))
    assert second.product == Product("w", None)
    out = dot("bf,df->bd", first, W)
    assert out.product == Product("w", None, (Digit(10, OPAQUE, f),))
    assert dot("df,bf->db", W, first).product == out.product


def test_squares():
    square = contraction.multiply(instruction("multiply", 3, 12), X, X)
    assert (square.product, square.dims) == (Product(None, ("x",)), X.dims)
    assert (square.sum, square.reads) == (None, {("x",)})


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (X, Y),
        (X, X.replace(sum=("x", "y"))),
        (X.replace(sum=None), X.replace(sum=None)),
        (X, X.replace(dims=(X.dims[0], (Digit(12, OPAQUE),)))),
        (X, X.replace(dims=((Digit(3),), X.dims[1]))),
        *[(X.replace(dims=(X.dims[0], (Digit(12, OPAQUE),))),) * 2],
        (W, W),
        (X, MASK),
        (MASK, MASK),
        (MASK.replace(sum=("token",)),) * 2,
    ],
)
def test_other_multiplications_are_no_products(left, right):
    i = instruction("multiply", 3, 12)
    assert contraction.multiply(i, left, right) is None
    assert contraction.multiply(i, right, left) is None


def dot(spec, a, b):
    """An einsum whose result is in the order of a dot: batch, free in a, free in b."""
    terms, out = spec.split("->")
    x, y = terms.split(",")
    sizes = dict(zip(x + y, [*a.shape.dims, *b.shape.dims], strict=True))
    batch = [c for c in out if c in x and c in y]
    summed = [c for c in x if c in y and c not in out]
    assert list(out) == batch + [c for c in x + y if c not in batch + summed]
    numbers = {
        f"{side}_{what}_dimensions": tuple(map(term.index, letters))
        for side, term in (("lhs", x), ("rhs", y))
        for what, letters in (("batch", batch), ("contracting", summed))
    }
    return contraction.dot(instruction("dot", *(sizes[c] for c in out)), a, b, numbers)


@pytest.mark.parametrize(
    ("spec", "operands", "dims"),
    [
        ("bd,df->bf", (X, W), ((ROWS,), (COLUMNS,))),
        ("df,bd->fb", (W, X), ((COLUMNS,), (ROWS,))),
        ("bd,de->be", (X, value(ROLES["thin"])), ((ROWS,), ())),
    ],
)
def test_a_dot_with_a_weight(spec, operands, dims):
    out = dot(spec, *operands)
    name = next(v.origin for v in operands if v.kind is Kind.WEIGHT)
    assert out.dims == dims
    assert out.product == Product(name, None, (Digit(12, d, d),))
    assert contraction.contraction_fault(out, ROLES) is None


@pytest.mark.parametrize("turn", [1, -1])
def test_a_dot_with_batch_dimensions(turn):
    """Groups of D, each with its own block of the weight; the sum over groups is to come."""
    state = X.replace(dims=(X.dims[0], *dg.reshape((X.dims[1],), (4, 3))), shape=array(3, 4, 3))
    weight = W.replace(dims=dg.reshape(W.dims, (4, 3, 10)), shape=array(4, 3, 10))
    spec, operands = ("bkc,kcf->kbf", (state, weight)) if turn > 0 else (
        "kcf,bkc->kfb", (weight, state))
    out = dot(spec, *operands)
    high = Digit(4, Part(D, 3), Part(D, 3))
    assert out.dims == ((high,), *((ROWS,), (COLUMNS,))[::turn])
    assert out.product.contracted == (Digit(3, d, d),)
    assert contraction.contraction_fault(out, ROLES)[0] == "partial-contraction"
    total = contraction.reduce(instruction("reduce", 3, 10), out, (0,), "add")
    assert contraction.contraction_fault(total, ROLES) is None


def test_a_dot_that_is_no_contraction_of_whole_axes():
    """Summed over coordinates in an unknown order, or over what does not vary with the state."""
    for digits in ((Digit(12, OPAQUE),), (Digit(12),)):
        out = dot("bd,df->bf", X.replace(dims=(X.dims[0], digits)), W)
        expected = "w" if digits[0].state else None
        assert (out.product and out.product.weight) == expected
        assert contraction.contraction_fault(out, ROLES)[0] in ("wrong-axis", "hidden-gather")
    scrambled = W.replace(dims=((Digit(12, None, OPAQUE),), W.dims[1]))
    assert dot("bd,df->bf", X, scrambled).product is None


def test_a_dot_of_a_value_with_itself_is_a_sum_of_squares():
    out = dot("bd,bd->b", X, X)
    assert out.product == Product(None, ("x",), (Digit(12, d),))
    assert contraction.statistic_fault(out) is None
    for spec, right in (("bd,bd->b", Y), ("bd,cd->bc", X)):
        out = dot(spec, X, right)
        assert (out.product, out.reads) == (None, X.reads | right.reads)
        assert contraction.statistic_fault(out)
    assert dot("bd,cd->bc", X, X).dims == ((ROWS,), (ROWS,))


def test_a_dot_of_a_value_with_itself_turned_is_no_sum_of_squares():
    cube = made(State, "x", "BTD", (3, 3, 12), "D")
    numbers = {
        "lhs_contracting_dimensions": (2,), "rhs_contracting_dimensions": (2,),
        "lhs_batch_dimensions": (0, 1), "rhs_batch_dimensions": (1, 0),
    }
    out = contraction.dot(instruction("dot", 3, 3), cube, cube, numbers)
    assert out.product is None and contraction.statistic_fault(out)
    flat = cube.replace(dims=(*cube.dims[:2], *dg.reshape(cube.dims[2:], (3, 4))))
    numbers = {
        "lhs_contracting_dimensions": (0, 1), "rhs_contracting_dimensions": (1, 0),
        "lhs_batch_dimensions": (2, 3), "rhs_batch_dimensions": (2, 3),
    }
    out = contraction.dot(instruction("dot", 3, 4), flat, flat, numbers)
    assert out.product is None and contraction.statistic_fault(out)


@pytest.mark.parametrize(
    ("spec", "operands", "dims"),
    [
        ("cb,bd->cd", (MASK, X), ((Digit(5, OPAQUE),), (Digit(12, d),))),
        ("bd,cb->dc", (X, MASK), ((Digit(12, d),), (Digit(5, OPAQUE),))),
        ("bd,bc->bdc", (X, made(Public, "m", "BC", (3, 5))),
         ((ROWS,), (Digit(12, d),), (Digit(5, OPAQUE),))),
        ("bd,bc->bdc", (X, made(Public, "m", "RC", (3, 5))),
         ((Digit(3, OPAQUE),), (Digit(12, d),), (Digit(5, OPAQUE),))),
    ],
)
def test_a_dot_with_a_public_value_mixes_rows(spec, operands, dims):
    out = dot(spec, *operands)
    assert out.dims == dims and out.product is None
    name = next(v.origin for v in operands if v.kind is Kind.PUBLIC)
    assert out.origin == f"a contraction with {name}"


def test_a_dot_without_state():
    out = dot("cb,bf->cf", MASK, made(Public, "m", "BF", (3, 10)))
    assert (out.kind, out.origin) == (Kind.PUBLIC, "public input mask")
    assert dot("df,ef->de", W, W).origin == "a value computed from weight w"


@pytest.mark.parametrize("what", ["contracting", "batch"])
def test_a_dot_with_unpaired_dimensions(what):
    numbers = {f"{s}_{w}_dimensions": () for s in ("lhs", "rhs") for w in ("contracting", "batch")}
    numbers[f"lhs_{what}_dimensions"] = (1,)
    with pytest.raises(Unauditable, match="i: expected paired dimensions, got"):
        contraction.dot(instruction("dot", 3, 12), X, W, numbers)


def reduced(value, over, combine):
    kept = [n for i, n in enumerate(value.shape.dims) if i not in over]
    return contraction.reduce(instruction("reduce", *kept), value, over, combine)


def product(*dims, contracted=(), weight="w"):
    """State times a weight along these digits, of which others have been summed."""
    out = X.replace(dims=tuple(dg.join([x]) for x in dims), sum=None)
    shape = array(*(x.size for x in dims))
    return out.replace(shape=shape, product=Product(weight, None, contracted))


def test_a_product_is_summed_one_axis_after_another():
    whole = product(ROWS, Digit(12, d, d), COLUMNS)
    out = reduced(whole, (1,), "add")
    assert (out.dims, out.product) == (
        ((ROWS,), (COLUMNS,)),
        Product("w", None, (Digit(12, d, d),)),
    )
    first = whole.replace(dims=dg.reshape(whole.dims, (3, 4, 3, 10)), shape=array(3, 4, 3, 10))
    for order in ((1, 1), (2, 1)):
        out = first
        for axis in order:
            out = reduced(out, (axis,), "add")
        assert set(out.product.contracted) == {Digit(4, *[Part(D, 3)] * 2), Digit(3, d, d)}
        assert contraction.contraction_fault(out, ROLES) is None


def test_a_sum_over_what_is_not_paired_ends_a_product():
    """Over the weight's own axis, over rows, or in another way than by a sum."""
    whole = product(ROWS, Digit(12, d, d), COLUMNS)
    for over in ((2,), (0,), (0, 1)):
        out = reduced(whole, over, "add")
        assert (out.product, out.reduced) == (None, None)
        assert contraction.contraction_fault(out, ROLES)[0] == "hidden-gather"
    out = reduced(whole, (1,), "max")
    assert (out.product, out.dims) == (None, ((ROWS,), (Digit(10, OPAQUE),)))
    assert out.reduced == Reduced("max", (Digit(12, d),))


def test_coordinates_are_combined_one_axis_after_another():
    cube = made(State, "x", "BKD", (3, 2, 12), "D")
    once = reduced(cube, (2,), "max")
    assert (once.dims, once.reduced) == (cube.dims[:2], Reduced("max", cube.dims[2]))
    assert (once.sum, once.product) == (None, None)
    twice = reduced(once, (1,), "max")
    assert twice.reduced == Reduced("max", (*cube.dims[2], *cube.dims[1]))
    assert reduced(once, (1,), "min").reduced == Reduced("min", cube.dims[1])


def window(size=1, low=0, high=0, **changes):
    plain = {"stride": size, "window_dilation": 1, "base_dilation": 1, "window_reversal": False}
    return {"size": size, "padding_low": low, "padding_high": high, **plain, **changes}


def runs(value, windows, combine, *shape):
    return contraction.reduce_runs(instruction("reduce-window", *shape), value, windows, combine)


@pytest.mark.parametrize(
    ("width", "low", "high", "out"),
    [(3, 0, 0, 4), (12, 0, 0, 1), (5, 1, 2, 3), (5, 0, 3, 3), (7, 1, 1, 2), (13, 1, 0, 1)],
)
def test_runs_number_the_windows(width, low, high, out):
    value = runs(X, [window(), window(width, low, high)], "max", 3, out)
    assert value.dims == (X.dims[0], dg.enclose(X.dims[1], out))
    assert value.reduced == Reduced("max", X.dims[1] if out == 1 else ())
    last = reduced(value, (1,), "max")
    assert dg.collect(last.reduced.gone, "state") == (Digit(12, d),)


@pytest.mark.parametrize(
    ("columns", "out"),
    [
        (window(3, stride=2), 5),
        (window(6, stride=4), 2),
        (window(2, stride=3), 4),
        (window(3, 3, 0), 5),
        (window(3, 0, 3), 5),
        (window(3, -3, 0), 3),
        (window(3, 0, -3), 3),
        (window(3, base_dilation=2, high=1), 8),
        (window(3, window_dilation=2), 3),
        (window(3, base_dilation=2), 4),  # sizes that do not fit: no one has compared them yet
        (window(3, window_dilation=2), 4),
        (window(3, window_reversal=True), 4),
        (window(3), 3),
        (window(3), 5),
        (window(5), 2),
        # Windows of one coordinate each that are not the one at their own place.
        (window(1, 1, -1), 12),
        (window(1, -1, 1), 12),
        (window(1, high=-11, base_dilation=2), 12),
        (window(1, 1, 0), 13),
        (window(1, 0, 1), 13),
        (window(1, stride=2), 6),
        (window(1, base_dilation=2), 23),
    ],
)
def test_other_windows_are_not_followed(columns, out):
    assert runs(X, [window(), columns], "add", 3, out) is None
    whole = product(ROWS, Digit(12, d, d))
    assert runs(whole, [window(), columns], "add", 3, out) is None


def test_runs_of_what_is_not_paired_are_not_followed():
    whole = product(ROWS, Digit(12, d, d), COLUMNS)
    assert runs(whole, [window(), window(3), window()], "add", 3, 4, 10) is not None
    for windows, shape in (
        ([window(3), window(), window()], (1, 12, 10)),
        ([window(), window(), window(5)], (3, 12, 2)),
    ):
        assert runs(whole, windows, "add", *shape) is None
    for digit in (Digit(12), Digit(12, OPAQUE)):
        scrambled = X.replace(dims=(X.dims[0], (digit,)))
        assert runs(scrambled, [window(), window(3)], "max", 3, 4) is None


def test_runs_of_a_dimension_of_size_1():
    thin = made(State, "x", "BD", (1, 12), "D")
    value = runs(thin, [window(2, 1), window(4)], "add", 1, 3)
    assert value.dims == ((), dg.enclose(thin.dims[1], 3))


def test_runs_that_were_combined_in_another_way_are_a_mixture():
    value = runs(X, [window(), window(3)], "max", 3, 4)
    assert runs(value, [window(), window(2)], "max", 3, 2).dims[1] != (Digit(2, OPAQUE),)
    assert runs(value, [window(), window(2)], "add", 3, 2) is None
    assert reduced(value, (1,), "add").reduced == Reduced("add", (Digit(4, OPAQUE),))
    whole = product(ROWS, Digit(12, d, d))
    assert runs(whole, [window(), window(3)], "max", 3, 4).product is None


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_sums_in_any_order_are_contractions_when_they_are_complete(data):
    """x [B, D] . w [D, F], D cut up, padded and summed at random."""
    pieces = data.draw(st.sampled_from([(12,), (3, 4), (2, 3, 2), (6, 2)]))
    summed = [digit for (digit,) in dg.reshape(((Digit(12, d, d),),), pieces)]
    digits = data.draw(st.permutations([ROWS, COLUMNS, *summed]))
    left = [i for i, digit in enumerate(digits) if digit in summed]
    out = product(*digits)
    while any(out.shape.dims[i] > 1 for i in left):
        assert contraction.contraction_fault(out, ROLES)[0] == "partial-contraction"
        axis = data.draw(st.sampled_from(left))
        n = out.shape.dims[axis]
        width = data.draw(st.integers(2, n + 1))
        low = data.draw(st.integers(0, width - 1))
        if data.draw(st.booleans()):
            high = -(low + n) % width
            windows = [window() for _ in out.shape.dims]
            windows[axis] = window(width, low, high)
            shape = list(out.shape.dims)
            shape[axis] = (low + n + high) // width
            out = runs(out, windows, "add", *shape)
        else:
            out = reduced(out, (axis,), "add")
            left = [i - (i > axis) for i in left if i != axis]
    assert contraction.contraction_fault(out, ROLES) is None


def halves(n, *tags):
    """The major and the minor digit of one of size 2 * n."""
    return dg.split(Digit(2 * n, *tags), n)


HIGH, LOW = halves(6, d, d)
WIDE, NARROW = halves(5, None, f)
OVER = (Digit(12, d, d),)


@pytest.mark.parametrize(
    "whole",
    [
        product(ROWS, COLUMNS, contracted=OVER),
        product(COLUMNS, ROWS, contracted=(LOW, HIGH)),
        product(NARROW, ROWS, WIDE, contracted=(HIGH, LOW)),
        product(Digit(1), COLUMNS, contracted=OVER),
        product(ROWS, contracted=OVER, weight="thin"),
        product(ROWS, COLUMNS, contracted=(*OVER, Digit(2, Part(Axis("J", 2), 1),
                                                        Part(Axis("K", 2), 1))), weight="heads"),
        product(ROWS, Digit(2, None, Part(Axis("K", 2), 1)), COLUMNS, contracted=OVER,
                weight="heads"),
        product(ROWS, COLUMNS, contracted=OVER).replace(origin="a sort"),
    ],
)
def test_what_may_leave(whole):
    assert contraction.contraction_fault(whole, ROLES) is None


@pytest.mark.parametrize(
    ("whole", "code", "words"),
    [
        (X, "hidden-gather", "state reaches it without a contraction with a declared weight"),
        (X.replace(origin="a sort"), "not-a-weight", "state reaches it through a sort"),
        (X.replace(product=Product(None, ("x",), OVER)), "hidden-gather", "without a contraction"),
        (product(ROWS, Digit(12, d, d), COLUMNS), "partial-contraction", "multiplied by w, but"),
        (product(ROWS, LOW, COLUMNS, contracted=(HIGH,)), "partial-contraction", "not summed over"),
        (
            product(ROWS, Digit(2, Part(Axis("J", 2), 1), Part(Axis("K", 2), 1)), COLUMNS,
                    contracted=OVER, weight="heads"),
            "partial-contraction", "multiplied by heads",
        ),
        (product(ROWS, COLUMNS, contracted=(Digit(12, d, OPAQUE),)), "wrong-axis", "not known"),
        (product(ROWS, Digit(10, None, OPAQUE), contracted=OVER), "wrong-axis", "not known"),
        (
            product(ROWS, COLUMNS, contracted=(*OVER, Digit(12, d, e))),
            "wrong-axis", "order of the coordinates of w is not known",
        ),
        (
            product(ROWS, Digit(10, None, Part(Axis("F", 20), 1)), contracted=OVER),
            "wrong-axis", "order of the coordinates of w is not known",
        ),
        (product(ROWS, COLUMNS, contracted=(HIGH,)), "partial-contraction", "axis D_n(12) of w"),
        (product(ROWS, COLUMNS, contracted=(LOW,)), "partial-contraction", "axis D_n(12) of w"),
        (
            product(ROWS, COLUMNS, contracted=(HIGH, HIGH)),
            "partial-contraction", "axis D_n(12) of w is neither summed nor kept whole",
        ),
        (product(ROWS, WIDE, contracted=OVER), "partial-contraction", "axis F(10) of w"),
        (product(ROWS, NARROW, contracted=OVER), "partial-contraction", "axis F(10) of w"),
        (
            product(ROWS, COLUMNS, contracted=(*OVER, Digit(10, OPAQUE, f))),
            "partial-contraction", "axis F(10) of w",
        ),
        (
            product(ROWS, COLUMNS, Digit(12, None, d), contracted=OVER),
            "partial-contraction", "axis D_n(12) of w",
        ),
        (
            product(ROWS, Digit(12, None, d), contracted=(Digit(10, OPAQUE, f),)),
            "wrong-axis", "expected w to be summed over its split axis D_n(12)",
        ),
        (
            product(ROWS, COLUMNS, contracted=(Digit(12, e, d),)),
            "wrong-axis", "w is summed over D_n(12) against other coordinates of state",
        ),
        (
            product(ROWS, COLUMNS, contracted=(Digit(12, OPAQUE, d),)),
            "wrong-axis", "against other coordinates",
        ),
        (
            product(ROWS, COLUMNS, contracted=(Digit(2, LOW.state, HIGH.weight),
                                               Digit(6, d, d))),
            "wrong-axis", "against other coordinates",
        ),
        (product(ROWS, COLUMNS, weight="scale"), "hidden-gather", "only scaled by scale"),
        (
            product(ROWS, Digit(12, d), COLUMNS, contracted=OVER),
            "wrong-axis", "coordinates of the state itself run along the result with w",
        ),
        (product(Digit(3, OPAQUE), COLUMNS, contracted=OVER), "wrong-axis", "state itself"),
        (product(Digit(3), COLUMNS, contracted=OVER), "wrong-axis", "state itself"),
    ],
)
def test_what_may_not_leave(whole, code, words):
    got, said = contraction.contraction_fault(whole, ROLES)
    assert got == code
    assert words in said


def squares(*dims, contracted, of=("x",)):
    return X.replace(dims=tuple(dg.join([x]) for x in dims), product=Product(None, of, contracted))


SPLIT = (Digit(12, d),)
FIRST, LAST = halves(6, d)


@pytest.mark.parametrize(
    "total",
    [
        squares(ROWS, contracted=SPLIT),
        squares(ROWS, contracted=(LAST, FIRST)),
        squares(Digit(1), contracted=SPLIT),
        squares(ROWS, contracted=dg.enclose(SPLIT, 4)),
        squares(ROWS, contracted=(FIRST, *dg.enclose((LAST,), 3))),
    ],
)
def test_statistics(total):
    assert contraction.statistic_fault(total) is None


@pytest.mark.parametrize(
    ("total", "words"),
    [
        (X, "it is not the sum of squares of a norm's input"),
        (product(ROWS, contracted=OVER), "it is not the sum of squares"),
        (squares(ROWS, contracted=()), "the squares are not summed over the split axis"),
        (squares(Digit(12, d), contracted=(ROWS,)), "not summed over the split axis"),
        (squares(contracted=(*SPLIT, ROWS)), "not summed over the split axis"),
        (squares(ROWS, contracted=(FIRST,)), "the squares are not summed over all of D_n(12)"),
        (squares(ROWS, contracted=(LAST, LAST)), "not summed over all of D_n(12)"),
        (squares(ROWS, contracted=dg.enclose((LAST,), 3)), "not summed over all of D_n(12)"),
        (squares(ROWS, contracted=(*SPLIT, Digit(12, e))), "not summed over all of D_n(12)"),
        (squares(ROWS, contracted=(LAST, Digit(2, Part(E, 6)))), "not summed over all of D_n(12)"),
        (squares(ROWS, Digit(12, d), contracted=SPLIT), "coordinates of the state run along"),
        (squares(Digit(3, OPAQUE), contracted=SPLIT), "coordinates of the state run along the sum"),
        (squares(Digit(3), contracted=SPLIT), "coordinates of the state run along the sum"),
    ],
)
def test_what_is_no_statistic(total, words):
    code, said = contraction.statistic_fault(total)
    assert code == "not-a-statistic"
    assert words in said
