"""Every mutant that changes what a node holds is caught; those that change nothing stay clean."""

import collections
import itertools

import pytest

from fcjax import audit
from fcjax.audit.roles import State
from tests.audit import mutate_collectives, mutations
from tests.audit.programs import honest

N = 3


def mutants(text, contract, every=1):
    """All of them, or every `every`-th of the many transfers: (kind, place, text)."""
    roles = contract.signature
    splits = {
        n: role.axes.index(role.split) for n, role in enumerate(roles.parameters) if role.split
    }
    shards = [n for n, role in enumerate(roles.results) if isinstance(role, State)]
    return itertools.chain(
        mutations.transfers(text, N, every),
        mutate_collectives.collectives(text, N),
        mutate_collectives.layouts(text, N, splits, shards),
    )


@pytest.fixture(scope="module")
def program():
    # As many rows as nodes: a scatter over the batch has the right count of elements.
    return honest(nodes=N, batch=N)


def test_kill_rate(program):
    text, contract = program
    killed, survived, refused = collections.Counter(), [], []
    for kind, place, changed in mutants(text, contract, every=6):
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
