"""Operators that run on the node itself, in little programs."""

import pytest

from fcjax.audit.domain.digits import OPAQUE, Digit
from fcjax.audit.domain.roles import State, Weight, tensor
from fcjax.audit.rules import contraction
from tests.audit.made import results

X = tensor(State, "x", "BD", (3, 12), "D")
W = tensor(Weight, "w", "DF", (12, 10), "D")


@pytest.mark.parametrize(
    ("window", "fault"),
    [
        ("", None),
        ("pad=0_0x1_-1", "wrong-axis"),
        ("pad=0_0x-1_1", "wrong-axis"),
        ("pad=0_0x0_-11 lhs_dilate=1x2", "wrong-axis"),
        ("pad=1_-1x0_0", "wrong-axis"),
    ],
)
def test_windows_of_one_coordinate_each(window, fault):
    """Where they stand beside their own place, x or its rows are in no known order after it."""
    (out,) = results(
        f"""HloModule m
sum {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}}
ENTRY e {{
  x = f32[3,12] parameter(0)
  w = f32[12,10] parameter(1)
  zero = f32[] constant(0)
  moved = f32[3,12] reduce-window(x, zero), window={{size=1x1 {window}}}, to_apply=sum
  ROOT r = f32[3,10] dot(moved, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}""",
        X,
        W,
    )
    got = contraction.contraction_fault(out, {"w": W})
    assert (got and got[0]) == fault


@pytest.mark.parametrize(("low", "order"), [(0, "kept"), (1, "lost")])
def test_windows_that_are_not_followed_keep_the_other_dimensions(low, order):
    (out,) = results(
        f"""HloModule m
most {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] maximum(a, b)
}}
ENTRY e {{
  x = f32[3,12] parameter(0)
  zero = f32[] constant(0)
  ROOT r = f32[3,10] reduce-window(x, zero), window={{size=1x3 stride=1x1 pad={low}_{-low}x0_0}},
    to_apply=most
}}""",
        X,
    )
    rows = X.digits("state")[0] if order == "kept" else (Digit(3, OPAQUE),)
    assert out.dims == (rows, (Digit(10, OPAQUE),))
