"""Cuts and what is equal on which devices, by hand."""

from fcjax.audit.domain import spread as sp
from fcjax.audit.domain.digits import Digit, Part
from fcjax.audit.domain.spread import COORDINATES, ROWS, WEIGHT, Spread

PAIRS = tuple(frozenset([b]) for b in (0, 0, 1, 1))


def _part(size, cut=PAIRS, rows=False):
    return Part(sp.axis(cut, size, rows), 1)


def test_a_cut_is_read_back_from_its_axis():
    mixed = (frozenset([0, 2]), frozenset(), frozenset([1]), frozenset([11]))
    for cut in (PAIRS, mixed):
        for rows in (False, True):
            assert list(sp.cuts(_part(8, cut, rows))) == [(cut, rows)]
    assert list(sp.cuts(COORDINATES)) == [] and sp.blocks(mixed) == {0, 1, 2, 11}


def test_a_cut_deals_out_the_major_coordinates():
    """8 heads of 16, of which a node has 2: as one dimension of 32 or as two, it is the same."""
    whole = ((Digit(32, _part(32)),),)
    split = ((Digit(2, _part(2)), Digit(16, COORDINATES)),)
    assert sp.retag(split) == sp.retag(whole) == whole
    heads = Part(sp.axis(PAIRS, 32, False), 16), Part(sp.axis(PAIRS, 32, False), 1)
    assert sp.retag(((Digit(2, heads[0]),), (Digit(16, heads[1]),))) == (
        (Digit(2, _part(2)),), (Digit(16, COORDINATES),),
    )


def test_what_was_dealt_out_and_is_gathered_is_whole():
    everyone = lambda cut: (sp.blocks(cut),) * 4  # noqa: E731
    swapped = lambda cut: cut[2:] + cut[:2]  # noqa: E731
    assert sp.moved(((Digit(4, _part(4)),),), everyone) == ((Digit(4, COORDINATES),),)
    assert sp.moved(((Digit(4, _part(4, rows=True)),),), everyone) == ((Digit(4, ROWS),),)
    assert sp.moved(((Digit(4, None, _part(4)),),), everyone) == ((Digit(4, None, WEIGHT),),)
    ((digit,),) = sp.moved(((Digit(4, _part(4)),),), swapped)
    assert list(sp.cuts(digit.state)) == [(swapped(PAIRS), False)]


def test_two_arrays_are_equal_where_both_are():
    a, b = Spread((1, 1, 2, 2), ("p", "p", "q", "q")), Spread((4, 8, 4, 8), ("r", "s", "r", "s"))
    both = sp.union([a, b], 4)
    assert both.reach == (5, 9, 6, 10) and both.same == (0, 1, 2, 3)
    assert sp.union([a, a], 4).same == (0, 0, 2, 2)
    assert sp.union([], 4).same == (0,) * 4
