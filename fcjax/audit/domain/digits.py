"""Which coordinates lie along each dimension of a value: dimensions as mixed-radix numbers.

A dimension of size n is written as digits from major to minor whose sizes multiply to n. Each digit
says which part of which axis runs along it, once for state and once for a weight. Reshapes split
and join digits, transposes move them, and what does not come out even becomes `OPAQUE`: coordinates
of which we no longer know the order. So "over which axis, and in which order of owners" is a fact
about the digits of a value, however XLA has reshaped, transposed or laid it out.

    [B, K * C * H] is (B) (K, C, H);  scattering dimension 1 over 2 nodes splits K, not C or H.

None means "the same value all along this digit": a broadcast.
"""

import dataclasses
import math
from typing import NamedTuple

OPAQUE = "?"  # coordinates in an unknown order


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the plan as one node sees it.

    Attributes:
      name: its letter in the dimension key, for example "D".
      size: coordinates along it on this node, padding included.
      split: these are one node's coordinates, not all of them.
      parts: (size, tag) of the digits, major to minor, if several were fused into this axis.
      inner: the digits that this axis stands for: they were summed in runs, which it numbers, or
        constants stand before and after them. Only a sum over the whole axis is a sum over them.
      low: how many constants stand before them.
      run: (low, size) if these are only some coordinates, those from low on, of an axis of this
        size.
    """

    name: str
    size: int
    split: bool = False
    parts: tuple[tuple[int, "Tag"], ...] = ()
    inner: "tuple[Digit, ...]" = ()
    low: int = 0
    run: tuple[int, int] | None = None

    def __str__(self):
        run = f"[{self.run[0]}:{self.run[0] + self.size}]" if self.run else ""
        return f"{self.name}{'_n' if self.split else ''}{run}({self.size})"


class Part(NamedTuple):
    """Every `stride`-th coordinate of an axis; the digit's size says how many."""

    axis: Axis
    stride: int


Tag = Part | str | None


class Digit(NamedTuple):
    """One digit: its size, the part of state that runs along it, and the part of a weight."""

    size: int
    state: Tag = None
    weight: Tag = None


Dims = tuple[tuple[Digit, ...], ...]  # one tuple of digits a dimension; () for size 1


def split(digit: Digit, minor: int) -> tuple[Digit, Digit]:
    """The digit as a major and a minor one, the minor of the given size."""

    def up(tag: Tag) -> Tag:
        return Part(tag.axis, tag.stride * minor) if isinstance(tag, Part) else tag

    return (
        Digit(digit.size // minor, up(digit.state), up(digit.weight)),
        Digit(minor, digit.state, digit.weight),
    )


def join(digits) -> tuple[Digit, ...]:
    """The same digits in their shortest form: none of size 1, neighbours joined where they can."""
    out: list[Digit] = []
    for digit in digits:
        if digit.size == 1:
            continue
        if out and split(Digit(out[-1].size * digit.size, *digit[1:]), digit.size)[0] == out[-1]:
            out[-1] = Digit(out[-1].size * digit.size, *digit[1:])
        else:
            out.append(digit)
    parts = [part for d in out for part in _unfuse(d)]
    return tuple(out) if parts == out else join(parts)


def fuse(digits) -> Digit:
    """Digits, major to minor, as one digit of one axis."""

    def tag(tags: list[Tag]) -> Tag:
        if all(t is None for t in tags):
            return None
        if all(t == OPAQUE for t in tags):
            return OPAQUE
        names = [t.axis.name if isinstance(t, Part) else str(t) for t in tags]
        is_split = any(isinstance(t, Part) and t.axis.split for t in tags)
        parts = tuple((d.size, t) for d, t in zip(digits, tags, strict=True))
        return Part(Axis("*".join(names), size(digits), is_split, parts), 1)

    return Digit(size(digits), tag([d.state for d in digits]), tag([d.weight for d in digits]))


def _whole(tag: Tag, n: int) -> bool:
    return isinstance(tag, Part) and bool(tag.axis.parts) and (n, 1) == (tag.axis.size, tag.stride)


def _unfuse(digit: Digit) -> list[Digit]:
    """The parts of a digit that is a whole fused axis; the digit itself where they do not fit."""
    state, weight = digit.state, digit.weight
    fused = [t.axis.parts for t in (state, weight) if _whole(t, digit.size)]
    if not fused or any([n for n, _ in f] != [n for n, _ in fused[0]] for f in fused):
        return [digit]
    sizes = [n for n, _ in fused[0]]

    def parts(tag: Tag) -> list[Tag]:
        if _whole(tag, digit.size):
            return [t for _, t in tag.axis.parts]
        if not isinstance(tag, Part):
            return [tag] * len(sizes)
        strides = [tag.stride * math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        return [Part(tag.axis, stride) for stride in strides]

    return [Digit(*d) for d in zip(sizes, parts(state), parts(weight), strict=True)]


def size(digits) -> int:
    return math.prod(d.size for d in digits)


def reshape(dims: Dims, sizes) -> Dims:
    """Row-major reshape to dimensions of these sizes."""
    rest, out = [d for digits in reversed(dims) for d in reversed(digits)], []
    for n in sizes:
        taken: list[Digit] = []
        while size(taken) < n and rest:
            need, digit = n // size(taken), rest.pop()
            while need % digit.size and digit.size % need:  # the cut runs across digits
                if not rest:
                    raise ValueError(f"a reshape of {dims} to {sizes}")
                digit = fuse([digit, rest.pop()])
            if need % digit.size:
                digit, minor = split(digit, digit.size // need)
                rest.append(minor)
            taken.append(digit)
        out.append(join(taken))
    return tuple(out)


def bitcast(dims: Dims, layout, sizes, new_layout) -> Dims:
    """The same bytes read as another shape: a reshape in physical order, major to minor."""
    physical = tuple(dims[d] for d in reversed(layout))
    order = tuple(reversed(new_layout))
    out = reshape(physical, [sizes[d] for d in order])
    return tuple(out[order.index(d)] for d in range(len(sizes)))


def align(a, b) -> list[tuple[Digit, Digit]]:
    """Two spellings of one dimension, split until the sizes agree; fused where they cannot."""
    left, right, out = list(a), list(b), []
    while left and right:
        x, y = left.pop(), right.pop()
        if x.size % y.size == 0:
            if x.size > y.size:
                major, x = split(x, y.size)
                left.append(major)
        elif y.size % x.size == 0:
            major, y = split(y, x.size)
            right.append(major)
        else:
            return [(fuse([*left, x]), fuse([*right, y])), *out[::-1]]
        out.append((x, y))
    assert not left and not right, "dimensions of the same size have digits of the same size"
    return out[::-1]


def merge(a: Tag, b: Tag) -> Tag:
    """What runs along a digit of a value that is computed from two."""
    if a == b or b is None:
        return a
    return b if a is None else OPAQUE


def unify(a: Dims, b: Dims) -> Dims:
    """The dimensions of an elementwise result of two operands."""
    return tuple(
        join(
            Digit(p.size, merge(p.state, q.state), merge(p.weight, q.weight))
            for p, q in align(x, y)
        )
        for x, y in zip(a, b, strict=True)
    )


def collect(digits, field: str) -> tuple[Digit, ...]:
    """Digits from several places, those of one axis put together again where they continue."""
    tags = [getattr(d, field) for d in digits]
    by_axis: dict[Axis | None, list[Digit]] = {}
    for digit, tag in zip(digits, tags, strict=True):
        by_axis.setdefault(tag.axis if isinstance(tag, Part) else None, []).append(digit)
    out: list[Digit] = []
    for axis, found in by_axis.items():
        if axis is not None:
            found.sort(key=lambda d: -getattr(d, field).stride)
        out += join(found)
    opened = [_open(d) for d in out]
    if any(inner is not None for inner in opened):
        rest = [(d,) if inner is None else inner for d, inner in zip(out, opened, strict=True)]
        return collect([d for digits in rest for d in digits], field)
    return tuple(out)


def enclose(digits, n: int, low: int = 0) -> tuple[Digit, ...]:
    """A dimension of size n that stands for these digits (`Axis.inner`)."""
    tags = [t for d in digits for t in (d.state, d.weight) if isinstance(t, Part)]
    name = "*".join(dict.fromkeys(t.axis.name for t in tags)) + "'"
    is_split = any(t.axis.split for t in tags)
    tag = Part(Axis(name, n, is_split, inner=tuple(digits), low=low), 1)
    state, weight = (
        any(t is not None for t in side) for side in zip(*(d[1:] for d in digits), strict=True)
    )
    return join([Digit(n, tag if state else None, tag if weight else None)])


def uncover(digits, low: int, n: int) -> tuple[Digit, ...] | None:
    """What a dimension stands for, if its n coordinates from `low` on are just that."""
    inner = _open(digits[0]) if len(digits) == 1 else None
    if inner is None or size(inner) != n:
        return None
    tags = [t for t in digits[0][1:] if isinstance(t, Part)]
    return inner if all(t.axis.low == low for t in tags) else None


def _open(digit: Digit) -> tuple[Digit, ...] | None:
    """The digits that a whole enclosing axis stands for; state and weight must stand in line."""
    tags = [t for t in digit[1:] if t is not None]
    if not all(_encloses(t, digit.size) for t in tags) or not tags:
        return None
    first, last = tags[0].axis, tags[-1].axis
    if first == last:
        return first.inner
    if first.low != last.low or size(first.inner) != size(last.inner):
        return None
    return tuple(Digit(x.size, x.state, y.weight) for x, y in align(first.inner, last.inner))


def _encloses(tag: Tag, n: int) -> bool:
    return isinstance(tag, Part) and bool(tag.axis.inner) and (n, 1) == (tag.axis.size, tag.stride)


def covers(parts, axis: Axis) -> bool:
    """Do these (stride, size) pairs together run through the whole axis, each part once?"""
    reach = 1
    for stride, n in sorted(parts):
        if stride != reach:
            return False
        reach *= n
    return reach == axis.size


def run_of(axis: Axis, low: int, n: int) -> Axis:
    """The n coordinates of an axis that start at `low`, as an axis."""
    before, size = axis.run or (0, axis.size)
    run = None if n == size else (before + low, size)
    return dataclasses.replace(axis, size=n, run=run)


def following(a: Axis, b: Axis) -> Axis | None:
    """Two runs of one axis, if the second starts where the first ends."""
    if not (a.run and b.run) or dataclasses.replace(a, size=b.size, run=b.run) != b:
        return None
    if a.run[1] != b.run[1] or a.run[0] + a.size != b.run[0]:
        return None
    return run_of(dataclasses.replace(a, run=(a.run[0], a.run[1])), 0, a.size + b.size)


def are_apart(a: Axis, b: Axis) -> bool:
    """Are these runs of one axis that have no coordinate in common?"""
    if dataclasses.replace(a, size=b.size, run=b.run) != b:
        return False
    return a.run[0] + a.size <= b.run[0] or b.run[0] + b.size <= a.run[0]
