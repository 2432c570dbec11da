"""The number of a loop's rounds is followed from constants, as the types of its values have it."""

import pytest

from fcjax.audit.domain.roles import Public, Signature, tensor
from fcjax.audit.hlo.graph import parse
from fcjax.audit.provenance import walk
from fcjax.audit.rules import loops

LOOP = """HloModule m
body {{
  p = (s32[], f32[3]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[3] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, {step})
  ROOT t = (s32[], f32[3]) tuple(next, x)
}}
condition {{
  p = (s32[], f32[3]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant({count})
  {going}
}}
ENTRY e {{
  x = f32[3] parameter(0)
  start = s32[] parameter(1)
  zero = s32[] constant(0)
  t = (s32[], f32[3]) tuple({start}, x)
  w = (s32[], f32[3]) while(t), body=body, condition=condition
  ROOT r = s32[] get-tuple-element(w), index=0
}}"""
LESS = "ROOT c = pred[] compare(i, n), direction=LT"
# What is not zero is true.
NOT_ZERO = """left = s32[] subtract(n, i)
  some = pred[] convert(left)
  one = s32[] constant(1)
  yes = pred[] convert(one)
  ROOT c = pred[] and(some, yes)"""


@pytest.mark.parametrize(
    ("rounds", "facts"),
    [
        (5, {}),
        (0, {"count": 0}),
        (2, {"going": NOT_ZERO, "count": 2}),
        (None, {"start": "start"}),
        (None, {"step": "i"}),
        (None, {"count": 257}),
    ],
)
def test_rounds(rounds, facts):
    facts = {"step": "one", "count": 5, "going": LESS, "start": "zero"} | facts
    text = LOOP.format(**facts)
    module = parse(text)
    roles = tensor(Public, "x", "B", (3,)), tensor(Public, "start", "", ())
    flow = walk(module, Signature(1, roles, ()), unroll=True)
    assert loops.number(flow.results[0]) == rounds
    assert len(flow.loops) == (rounds is not None)
    assert not walk(module, Signature(1, roles, ())).loops
