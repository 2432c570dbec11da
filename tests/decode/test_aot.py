"""Topologies by name, and a compiler that is not there."""

import pytest

from experiments.adversary.programs import QWEN_15
from fcjax.decode import aot
from fcjax.sharded.interval import Interval


def test_names():
    assert aot.parse_topology("l4x2") == ("l4", 2)
    assert all(aot.parse_topology(name) for name in aot.TOPOLOGIES)
    for name in ("l4", "l4x0", "x2", "v100x2", "l4x2x2", "L4x2", ""):
        with pytest.raises(ValueError, match="topology: expected one of"):
            aot.parse_topology(name)


def test_a_compiler_that_is_not_there_is_said_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="the compiler failed") as e:
        aot.compile_interval("l4x2", QWEN_15, Interval(0), length=8, python="false")
    assert "\n" not in str(e.value)
