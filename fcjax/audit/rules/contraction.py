"""Products of state with weights, and the sums that make contractions of them.

A contraction appears in optimized HLO as `dot`, as a library call, or as multiply and reduce; a
compiler may also cut it into several partial sums (split-K, tree reductions). All are followed the
same way: a product pairs each digit of the state with the digit of the weight beside it, and a sum
takes paired digits away. What is left when every paired digit is gone is a partial sum over nodes
that may be scattered (`contraction_fault`).
"""

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import Digit, Dims, Part
from fcjax.audit.domain.roles import Tensor
from fcjax.audit.domain.values import Kind, Product, Reduced, Value, is_split, mixed
from fcjax.audit.hlo import called
from fcjax.audit.hlo.graph import Computation, Instruction, Unauditable

_COMBINERS = {"add": "add", "maximum": "max", "minimum": "min"}


def combines(computation: Computation) -> str:
    """What it does to its two scalar parameters: "add", "max" or "min"; "" for anything else."""
    return _COMBINERS.get(called.combiner(computation), "")


def multiply(instruction: Instruction, a: Value, b: Value) -> Value | None:
    """The product of state with a weight or with itself; None for any other multiplication.

    Also a weight, or a product with one, whose coordinates another declared weight scales, as one
    that is stored in integers is.
    """
    for value, scale in ((a, b), (b, a)):
        if scale.kind is Kind.WEIGHT and _is_scale(scale, value):
            if value.kind is Kind.WEIGHT:
                return value.replace(shape=instruction.shape, scaled=True)
            product = value.product._replace(scaled=True)
            return _state(instruction, value.dims, [value], product)
    if {a.kind, b.kind} == {Kind.STATE, Kind.WEIGHT}:
        state, weight = (a.plain(), b) if a.kind is Kind.STATE else (b.plain(), a)
        dims = tuple(dg.join(_pair(x, y)) for x, y in zip(state.dims, weight.dims, strict=True))
        return _state(instruction, dims, [state], _with(weight))
    if same_boundary(a, b):
        return _state(instruction, a.dims, [a], _square(a, b))
    return None


def _is_scale(scale: Value, value: Value) -> bool:
    """Does a weight with fewer axes run along the same coordinates of another weight?"""
    if value.kind is not Kind.WEIGHT and (value.product is None or value.product.weight is None):
        return False
    pairs = [p for x, y in zip(scale.dims, value.dims, strict=True) for p in dg.align(x, y)]
    free = [y.weight for x, y in pairs if x.weight is None]
    along = all(x.weight in (None, y.weight) for x, y in pairs)
    paired = any(x.weight is not None and y.state is not None for x, y in pairs)
    summed = value.product.contracted if value.product else free
    return along and not paired and any(t is not None for t in summed)


def dot(instruction: Instruction, a: Value, b: Value, numbers: dict) -> Value:
    """A `dot`, or a library call with the same dimension numbers."""
    left, right = numbers["lhs_contracting_dimensions"], numbers["rhs_contracting_dimensions"]
    left_batch, right_batch = numbers["lhs_batch_dimensions"], numbers["rhs_batch_dimensions"]
    if len(left) != len(right) or len(left_batch) != len(right_batch):
        raise Unauditable(f"{instruction.name}: expected paired dimensions, got {numbers}")
    if Kind.STATE not in (a.kind, b.kind):
        return mixed(instruction, instruction.shape, [a, b])
    a, b = a.plain(), b.plain()
    free = [[d for d in range(len(v.dims)) if d not in used] for v, used in
            ((a, (*left, *left_batch)), (b, (*right, *right_batch)))]
    free_a, free_b = ([v.dims[d] for d in dims] for v, dims in zip((a, b), free, strict=True))
    batch = [(a.dims[i], b.dims[j]) for i, j in zip(left_batch, right_batch, strict=True)]
    summed = [(a.dims[i], b.dims[j]) for i, j in zip(left, right, strict=True)]
    if Kind.WEIGHT in (a.kind, b.kind):
        flip = a.kind is Kind.WEIGHT
        state, weight = (b, a) if flip else (a, b)
        pair = (lambda x, y: _pair(y, x)) if flip else _pair
        dims = (*(dg.join(pair(x, y)) for x, y in batch), *free_a, *free_b)
        whole = _state(instruction, dims, [state], _with(weight))
        return _sum(whole, [d for x, y in summed for d in pair(x, y)])
    # Turned against itself, a value is multiplied with others of its coordinates.
    in_line = (left, left_batch) == (right, right_batch)
    if same_boundary(a, b) and in_line and not (free_a or free_b):
        dims = tuple(x for x, _ in batch)
        whole = _state(instruction, dims, [a], _square(a, b))
        return _sum(whole, [d for x, _ in summed for d in x])
    states = [v for v in (a, b) if v.kind is Kind.STATE]
    # Along the free dimensions of a public factor, state is a mixture of its coordinates.
    if a.kind is not Kind.STATE:
        free_a = [_mixture(d) for d in free_a]
    if b.kind is not Kind.STATE:
        free_b = [_mixture(d) for d in free_b]
    dims = (*(dg.unify((x,), (y,))[0] for x, y in batch), *free_a, *free_b)
    out = _state(instruction, dims, states, None)
    others = [v for v in (a, b) if v.kind is not Kind.STATE]
    return out.replace(origin=f"a contraction with {others[0].origin}") if others else out


def reduce(instruction: Instruction, value: Value, over, combine: str) -> Value:
    """A state value combined over some of its dimensions."""
    if combine != "add" or value.product is None:
        value = _open_to(value, combine)
    kept = tuple(d for i, d in enumerate(value.dims) if i not in over)
    gone = [d for i in over for d in value.dims[i]]
    return _combined(_state(instruction, kept, [value], value.product), value, gone, combine)


def reduce_runs(
    instruction: Instruction, value: Value, windows: list[dict], combine: str
) -> Value | None:
    """A state value combined in consecutive windows, as in a tree; None for other windows."""
    if combine != "add" or value.product is None:
        value = _open_to(value, combine)
    dims, gone = [], []
    for digits, n, out, w in zip(
        value.dims, value.shape.dims, instruction.shape.dims, windows, strict=True
    ):
        if in_place(w):
            dims.append(digits)
            continue
        low, high, width = w["padding_low"], w["padding_high"], w["size"]
        # Every coordinate is in exactly one window, and no window is all padding.
        tiled = w["stride"] == width and 0 <= low < width and 0 <= high < width
        plain = w["window_dilation"] == w["base_dilation"] == 1 and not w["window_reversal"]
        if not (tiled and plain and out * width == low + n + high):
            return None
        if not _paired(value.product, digits):
            return None
        if out == 1:
            gone += digits
        dims.append(dg.enclose(digits, out) if digits else ())
    return _combined(_state(instruction, tuple(dims), [value], value.product), value, gone, combine)


def in_place(window: dict) -> bool:
    """Does each window of this dimension hold the one coordinate at its own place?

    Windows of one coordinate may also stand beside it: padding may be negative.
    """
    pads = window["padding_low"], window["padding_high"]
    return (window["size"], window["stride"], window["base_dilation"], *pads) == (1, 1, 1, 0, 0)


def _open_to(value: Value, combine: str) -> Value:
    """The value as something that is now combined in this way; in another before, it is mixed."""
    going_on = value.reduced and value.reduced.combine == combine
    return value if going_on else value.plain()


def _combined(whole: Value, value: Value, gone: list[Digit], combine: str) -> Value:
    """`whole`, which is `value` combined over these digits."""
    if value.product is not None:
        return _sum(whole, gone)
    before = value.reduced or Reduced(combine, (), value.boundary if combine == "add" else None)
    return whole.replace(reduced=before._replace(gone=(*before.gone, *gone)))


def contraction_fault(value: Value, weights: dict[str, Tensor]) -> tuple[str, str] | None:
    """Why a state value may not leave the node, as (reason code, words); None if it may.

    It may if it is the contraction of state with one declared weight, over the weight's whole split
    axis against the same coordinates of the state, leaving the weight's other axes whole and no
    split axis of the state.
    """
    product = value.product
    if product is None or product.weight is None:
        if value.origin:
            return "not-a-weight", f"state reaches it through {value.origin}"
        return "hidden-gather", "state reaches it without a contraction with a declared weight"
    name, weight = product.weight, weights[product.weight]
    summed = dg.collect(product.contracted, "weight")
    left = [d for d in value.digits if d.weight is not None]
    if any(d.state is not None and d.weight is not None for d in value.digits):
        return "partial-contraction", f"it is multiplied by {name}, but not summed over {left}"
    runs = {(a.name, a.split): a for a in product.runs}
    axes = [runs.get((a.name, a.split), a) for a in weight.axes]
    known = [_on(d.weight, axis) for d in (*summed, *left) for axis in axes]
    if sum(known) != len(summed) + len(left):
        return "wrong-axis", f"the order of the coordinates of {name} is not known"
    for axis in axes:
        over = _parts(summed, axis)
        out = _parts(left, axis)
        whole_over, whole_out = dg.covers(over, axis), dg.covers(out, axis)
        # An axis of size 1 has no digits: it counts as whole on either side.
        if not (whole_over and not out) and not (whole_out and not over):
            return "partial-contraction", f"axis {axis} of {name} is neither summed nor kept whole"
        if axis.run and (axis.split or over):
            return "partial-contraction", f"{name} is summed over a part of its axis, {axis}"
        if axis.split and not whole_over:
            return "wrong-axis", f"expected {name} to be summed over its split axis {axis}"
        if axis.split and any(d.state != d.weight for d in summed if _on(d.weight, axis)):
            return "wrong-axis", f"{name} is summed over {axis} against other coordinates of state"
    if dg.size(summed) < 2:
        return "hidden-gather", f"state is only scaled by {name}: nothing is summed on the node"
    batch = [d for d in value.digits if d.weight is None]
    if any(not isinstance(d.state, Part) or is_split(d.state) for d in batch):
        return "wrong-axis", f"coordinates of the state itself run along the result with {name}"
    return None


def statistic_fault(value: Value) -> tuple[str, str] | None:
    """Why a state value is not a declared statistic; None if it is.

    A declared statistic is the sum of squares of a boundary value over its whole split axis, or
    the sum of it.
    """
    product = power_sum(value)
    if product is None or product.of is None:
        return "not-a-statistic", "it is not the sum of squares of a norm's input"
    summed = dg.collect(product.contracted, "state")
    if not summed or not all(is_split(d.state) for d in summed):
        return "not-a-statistic", "the squares are not summed over the split axis"
    axis = summed[0].state.axis
    if axis.run:
        return "not-a-statistic", f"the squares are summed over a part of an axis, {axis}"
    parts = [(d.state.stride, d.size) for d in summed if d.state.axis == axis]
    if len(parts) != len(summed) or not dg.covers(parts, axis):
        return "not-a-statistic", f"the squares are not summed over all of {axis}"
    if any(not isinstance(d.state, Part) or is_split(d.state) for d in value.digits):
        return "not-a-statistic", "coordinates of the state run along the sum"
    return None


def power_sum(value: Value) -> Product | None:
    """The value as a sum of products; a boundary value that was added up is one of power 1."""
    if value.product is None and value.reduced and value.reduced.of is not None:
        return Product(None, value.reduced.of, value.reduced.gone, power=1)
    return value.product


def _parts(digits, axis) -> list[tuple[int, int]]:
    return [(d.weight.stride, d.size) for d in digits if _on(d.weight, axis)]


def _on(tag, axis) -> bool:
    return isinstance(tag, Part) and tag.axis == axis


def _pair(state, weight) -> list[Digit]:
    """Digits of a product along one dimension: the state's tag and the weight's, side by side."""
    return [Digit(x.size, x.state, y.weight) for x, y in dg.align(state, weight)]


def _mixture(digits) -> tuple[Digit, ...]:
    return dg.join([Digit(dg.size(digits), dg.OPAQUE)])


def _with(weight: Value) -> Product:
    return Product(weight.origin, None, runs=weight.runs, scaled=weight.scaled)


def _square(a: Value, b: Value) -> Product:
    return Product(None, a.boundary, scaled=a.sum is None or b.sum is None)


def same_boundary(a: Value, b: Value) -> bool:
    """Are both the same boundary value, or images of it, in the same order?"""
    return (
        a.kind is b.kind is Kind.STATE
        and a.boundary is not None
        and (a.boundary, a.dims) == (b.boundary, b.dims)
        and all(d.state != dg.OPAQUE for d in a.digits)
    )


def _sum(value: Value, gone: list[Digit]) -> Value:
    """The product value with these digits summed away."""
    product = value.product
    if not _paired(product, gone):
        return value.plain()
    return value.replace(product=product._replace(contracted=(*product.contracted, *gone)))


def _paired(product: Product | None, digits) -> bool:
    """Is it state times state, or state times weight, that runs along these digits?

    Without a product: is it state?
    """
    if product is None or product.weight is None:
        return all(isinstance(d.state, Part) for d in digits)
    return all(d.state is not None and isinstance(d.weight, Part) for d in digits)


def _state(instruction: Instruction, dims: Dims, states: list[Value], product) -> Value:
    """The state value that one array instruction makes of others."""
    shape = instruction.shape.leaves()[0]
    return mixed(instruction, shape, states).replace(dims=tuple(dims), product=product)
