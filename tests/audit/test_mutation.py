"""Every mutant that changes what a node holds is caught; those that change nothing stay clean."""

import collections

import pytest

from experiments.adversary import mutate_collectives, mutations
from experiments.adversary.programs import SAMPLED, WHOLE, honest
from fcjax import audit

N = 3  # as many rows as nodes: a scatter over the batch has the right count of elements
ONE = WHOLE | {"layers": 1}
# Of the many transfers every so-many-th is made; at least so many mutants must come of it.
PROGRAMS = {
    "one layer": ({}, 6, 400),
    "whole": (ONE, 41, 200),
    "whole, prefill": (ONE | {"tokens": 4}, 41, 150),
}


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request):
    options, every, count = PROGRAMS[request.param]
    return *honest(nodes=N, batch=N, **options), every, count


def test_kill_rate(program):
    text, contract, every, count = program
    killed, survived, refused = collections.Counter(), [], []
    for kind, place, changed in mutate_collectives.mutants(text, contract, every):
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
    assert sum(killed.values()) > count


def test_exchanges_of_a_search():
    text, contract = honest(nodes=N, batch=N, **ONE, sampling=SAMPLED)
    made = list(mutate_collectives.collectives(text, contract, only_exchanges=True))
    assert len(made) > 70
    for kind, place, changed in made:
        assert not audit.audit_interval(changed, contract).ok, (kind, place)


def test_neutral_changes_stay_clean(program):
    text, contract, *_ = program
    count = 0
    for kind, place, changed in mutations.neutral(text, every=8):
        found = audit.audit_interval(changed, contract)
        assert found.ok, (kind, place, str(found))
        count += 1
    assert count > 50
