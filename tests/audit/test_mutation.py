"""Every mutant that changes what a node holds is caught; those that change nothing stay clean."""

import collections

import pytest

from fcjax import audit
from tests.audit import mutate_collectives, mutations
from tests.audit.programs import honest

N = 3  # as many rows as nodes: a scatter over the batch has the right count of elements


@pytest.fixture(scope="module")
def program():
    return honest(nodes=N, batch=N)


def test_kill_rate(program):
    text, contract = program
    killed, survived, refused = collections.Counter(), [], []
    for kind, place, changed in mutate_collectives.mutants(text, contract, every=6):
        assert changed != text, (kind, place)
        try:
            alive = audit.audit_interval(changed, contract).ok
        except audit.Unauditable as e:
            refused.append((kind, place, str(e)))
            continue
        if alive:
            survived.append((kind, place))
        killed[kind] += 1
    print(f"\n{sum(killed.values())} mutants, {len(survived)} survived")
    assert not survived and not refused
    assert sum(killed.values()) > 400


def test_neutral_changes_stay_clean(program):
    text, contract = program
    count = 0
    for kind, place, changed in mutations.neutral(text, every=4):
        found = audit.audit_interval(changed, contract)
        assert found.ok, (kind, place, str(found))
        count += 1
    assert count > 100
