"""Every spelling of `replica_groups`, through XLA's own parser."""

import pytest

from fcjax import audit
from fcjax.audit.hlo import guard

_PROGRAM = """HloModule m, is_scheduled=true, num_partitions=8

%sum (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}}

ENTRY %e (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  ROOT %r = f32[8]{{0}} all-reduce(%x), channel_id=1, replica_groups={groups}{ids}, to_apply=%sum
}}
"""


def groups(spelling: str):
    ids = "" if spelling == "{}" else ", use_global_device_ids=true"
    return audit.parse(guard.check(_PROGRAM.format(groups=spelling, ids=ids))).entry.root.groups


PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("{}", (tuple(range(8)),)),
        ("{{0,1,2,3,4,5,6,7}}", (tuple(range(8)),)),
        ("{{0,1},{2,3},{4,5},{6,7}}", PAIRS),
        ("{{7,6,5,4},{3,2,1,0}}", ((7, 6, 5, 4), (3, 2, 1, 0))),
        ("{{0},{1},{2},{3},{4},{5},{6},{7}}", tuple((q,) for q in range(8))),
        ("[4,2]<=[8]", PAIRS),
        ("[1,8]<=[8]", (tuple(range(8)),)),
        ("[2,4]<=[4,2]T(1,0)", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['n'=8] {'n'}", (tuple(range(8)),)),
        ("mesh['a'=4,'b'=2] {'b'}", PAIRS),
        ("mesh['a'=4,'b'=2] {'a'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", PAIRS),
        ("mesh['a'=2,'b'=4] {'b':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
    ],
)
def test_spellings(spelling, expected):
    assert groups(spelling) == expected


@pytest.mark.parametrize(
    "spelling",
    ["{{0,0}}", "{{0,9}}", "{{-1,0}}", "[3,3]<=[9]", "{{0,1},{1,2}}", "mesh['a'=4] {'b'}"],
)
def test_what_is_no_partition_of_the_devices_is_refused(spelling):
    with pytest.raises(audit.Unauditable):
        groups(spelling)
