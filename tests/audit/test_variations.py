"""Honest programs that are not the project's own are clean; what hides beside them is found."""

import pytest

from experiments.adversary.variations import NEIGHBOURS, REFUSED, VARIATIONS, program
from fcjax import audit


def certified(fn, inputs, result):
    mapped, arguments, roles = program(fn, inputs, result)
    return audit.certify(mapped, roles, *arguments)


@pytest.mark.parametrize("name", VARIATIONS)
def test_variation(name):
    found = certified(*VARIATIONS[name])
    assert found.ok, str(found)[:4000]


@pytest.mark.parametrize("name", NEIGHBOURS | REFUSED)
def test_neighbour(name):
    code, *case = (NEIGHBOURS | REFUSED)[name]
    found = certified(*case)
    assert code in {v.code for v in found.violations}, str(found)[:4000]
