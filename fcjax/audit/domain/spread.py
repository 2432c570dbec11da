"""What all devices hold of a value, beside what `digits` says of one device's array.

A `Cut` says how an axis is dealt out: for each device, which blocks of it are there. It is written
into the name of an `Axis`, so that arrays that are cut alike have the same axis and the rules of
`digits` apply. Tags say what runs along a digit that is not cut: rows (tokens, batch), coordinates
of state, or a weight's own axis.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator

from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.digits import Axis, Digit, Dims, Part, Tag

Cut = tuple[frozenset[int], ...]

ROWS, COORDINATES, WEIGHT = "rows", "coordinates", "weight"


def axis(cut: Cut, size: int, rows: bool) -> Axis:
    """An axis of which each device has `size` coordinates, dealt out like this."""
    blocks = "|".join("+".join(map(str, sorted(b))) for b in cut)
    return Axis(f"{ROWS if rows else COORDINATES}:{blocks}", size, split=True)


@functools.cache
def _cut(name: str) -> tuple[Cut, bool]:
    what, _, blocks = name.partition(":")
    cut = tuple(frozenset(map(int, filter(None, b.split("+")))) for b in blocks.split("|"))
    return cut, what == ROWS


def cuts(tag: Tag) -> Iterator[tuple[Cut, bool]]:
    """The cuts along a digit, and whether each deals out rows."""
    if not isinstance(tag, Part) or not tag.axis.split:
        return
    inner = [t for _, t in tag.axis.parts] + [t for d in tag.axis.inner for t in d[1:]]
    if not inner:
        yield _cut(tag.axis.name)
    for t in inner:
        yield from cuts(t)


def cuts_of(digits: Iterable[Digit]) -> list[tuple[Cut, bool]]:
    """The cuts along some digits, each once."""
    return list(dict.fromkeys(c for d in digits for tag in d[1:] for c in cuts(tag)))


def blocks(cut: Cut) -> frozenset[int]:
    """All blocks of an axis that is dealt out."""
    return frozenset().union(*cut)


def is_whole(cut: Cut) -> bool:
    """Does every device have all of it?"""
    return len(set(cut)) == 1


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """Facts about one array on all devices.

    Attributes:
      reach: for each device, the blocks of inputs that its array is made of, as bits.
      same: for each device, what stands for the content of its array: equal for equal ones.
      numbers: for each device, the integer that is all of its array, where that is known.
      table: the integers of a constant.
      since: weights that it was made with since state last crossed, as bits.
      pending: it is a sum (or a maximum) over the coordinates that are dealt out like this, of
        which each device has added its own.
      single: cuts along dimensions that are one long on each node, and whether they deal out rows:
        such a dimension has no digits.
      sliced: what ran along the dimensions of which it is a slice, if nothing was done to it since.
      statistic: numbers for each row, in which coordinates of state have been combined.
      whole: it is made of state that a device held complete.
    """

    reach: tuple[int, ...]
    same: tuple[Hashable, ...]
    numbers: tuple[int, ...] = ()
    table: tuple[int, ...] = ()
    since: int = 0
    pending: frozenset[Cut] = frozenset()
    single: frozenset[tuple[Cut, bool]] = frozenset()
    sliced: frozenset[Tag] = frozenset()
    statistic: bool = False
    whole: bool = False

    def replace(self, **changes) -> "Spread":
        return dataclasses.replace(self, **changes)


def first_equal(keys) -> tuple[int, ...]:
    """For each device, the first one with the same key."""
    first: dict = {}
    return tuple(first.setdefault(key, d) for d, key in enumerate(keys))


def union(spreads: list[Spread], devices: int) -> Spread:
    """Of an array that each device makes of its own arrays."""
    if len(spreads) == 1:
        return spreads[0]
    if not spreads:
        return Spread((0,) * devices, (0,) * devices)
    either = functools.partial(functools.reduce, int.__or__)
    return Spread(
        reach=tuple(map(either, zip(*(s.reach for s in spreads), strict=True))),
        same=first_equal(zip(*(s.same for s in spreads), strict=True)),
        since=either(s.since for s in spreads),
        pending=frozenset().union(*(s.pending for s in spreads)),
        single=frozenset().union(*(s.single for s in spreads)),
        statistic=all(s.statistic for s in spreads),
        whole=any(s.whole for s in spreads),
    )


def retag(dims: Dims, change: Callable[[Digit], Digit] = lambda d: d) -> Dims:
    """The dimensions with other tags, in a form that is the same for the same content."""
    return tuple(_plain(map(change, digits)) for digits in dims)


def _plain(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    """A cut deals out the major coordinates; those after them are whole, and go with them."""
    out: list[Digit] = []
    for digit in digits:
        n, state, weight = digit
        digit = Digit(n, _major(state, n, False), _major(weight, n, True))
        pairs = list(zip(out[-1][1:], digit[1:], strict=True)) if out else []
        if any(map(_goes_with, pairs)) and all(_goes_with(p) or p[0] == p[1] for p in pairs):
            size = out[-1].size * digit.size
            resized = (_resized(a, size) if _goes_with((a, b)) else a for a, b in pairs)
            out[-1] = Digit(size, *resized)
        else:
            out.append(digit)
    return dg.join(out)


def _is_simple(tag: Tag) -> bool:
    return isinstance(tag, Part) and tag.axis.split and not (tag.axis.parts or tag.axis.inner)


def _resized(tag: Part, size: int) -> Part:
    return Part(dataclasses.replace(tag.axis, size=size), 1)


def _major(tag: Tag, size: int, is_weight: bool) -> Tag:
    if not _is_simple(tag):
        return tag
    if tag.stride * size == tag.axis.size:
        return _resized(tag, size)
    return _whole(tag, is_weight) if tag.stride * size < tag.axis.size else tag


def _whole(tag: Part, is_weight: bool) -> str:
    return WEIGHT if is_weight else ROWS if _cut(tag.axis.name)[1] else COORDINATES


def _goes_with(pair: tuple[Tag, Tag]) -> bool:
    """Is a digit whole that comes after one that is dealt out?"""
    major, minor = pair
    return _is_simple(major) and isinstance(minor, str) and minor != dg.OPAQUE


def moved(dims: Dims, change: Callable[[Cut], Cut]) -> Dims:
    """The dimensions of an array that came from other devices, which changes its cuts."""

    def tag(t: Tag, is_weight: bool) -> Tag:
        if not isinstance(t, Part) or not t.axis.split:
            return t
        if not _is_simple(t):
            return dg.OPAQUE
        cut, rows = _cut(t.axis.name)
        cut = change(cut)
        whole = is_whole(cut)
        return _whole(t, is_weight) if whole else Part(axis(cut, t.axis.size, rows), t.stride)

    return retag(dims, lambda d: Digit(d.size, tag(d.state, False), tag(d.weight, True)))


def settled(digit: Digit, summed: bool) -> Digit:
    """Once it is summed, what ran only along a weight is a coordinate of new state."""
    state, weight = digit.state, digit.weight
    if state is None and summed and weight is not None:
        state = COORDINATES if weight == WEIGHT else weight
    elif isinstance(weight, Part) and isinstance(state, str) and state != dg.OPAQUE:
        state = weight
    return Digit(digit.size, state, None if state is not None else weight)


def is_row(digit: Digit) -> bool:
    """Do only rows run along it?"""
    tags = [t for t in digit[1:] if t is not None]
    return all(t == ROWS or (isinstance(t, Part) and all(r for _, r in cuts(t))) for t in tags)
