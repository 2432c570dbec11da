"""The identity test finds what computes anything else; honest programs are in `test_honest`."""

import collections
import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.adversary import mutate_function
from experiments.adversary.planted_function import PLANTED_FUNCTION
from experiments.adversary.programs import QWEN3, WHOLE, honest, interval
from fcjax import audit
from fcjax.audit import check, identity
from fcjax.sharded.sampling import Sampling


def identical(text, contract, seed=None):
    return identity.check(audit.parse(text), contract.signature, contract.definition, seed)


@pytest.mark.parametrize("name", PLANTED_FUNCTION)
def test_planted(name):
    where, options = PLANTED_FUNCTION[name]
    text, contract = interval(**options)
    violations = identical(text, contract)
    assert violations[0].text.startswith(where) or violations[0].code == where, violations[0]
    assert violations[0].line
    assert not audit.audit_interval(text, contract).ok


# For each program: options, every so-many-th mutant of a kind, and how many that are at least.
MUTATED = {
    "one layer": ({"nodes": 3, "batch": 3}, 9, 60),
    "Qwen3, 4 tokens": ({"cfg": QWEN3, "batch": 2, "tokens": 4}, 9, 50),
    "whole": (WHOLE | {"layers": 1, "batch": 2}, 15, 40),
    "bf16": ({"dtype": jnp.bfloat16, "batch": 2}, 9, 30),
}


@pytest.mark.parametrize("name", MUTATED)
def test_mutants_of_function(name):
    options, every, least = MUTATED[name]
    text, contract = honest(**options)
    kinds, survived = collections.Counter(), []
    for kind, place, changed in mutate_function.mutants(text, every):
        kinds[kind] += 1
        try:  # an operator of reductions that the evaluator does not know is refused
            if audit.audit_interval(changed, contract).ok:
                survived.append((kind, place))
        except audit.Unauditable:
            continue
    assert not survived
    assert len(kinds) >= 15 and sum(kinds.values()) >= least


def test_the_verdict_says_which_check_refused():
    text, contract = honest()
    clean = audit.audit_interval(text, contract)
    assert clean.ok and clean.compared and "identity: values" in clean.text("x")
    changed, _ = interval(**PLANTED_FUNCTION["mask: one coordinate"][1])
    other = audit.audit_interval(changed, contract)
    assert {v.code for v in other.violations} == {"not-identical"} and other.compared
    assert "walk: clean" in other.text("x") and "NOT" in other.text("x")
    open_contract = dataclasses.replace(contract, definition=None)
    walked = audit.audit_interval(changed, open_contract)
    assert not walked.compared and "identity: not run" in walked.text("x")


def test_a_program_that_passed_is_not_run_again(monkeypatch):
    text, contract = honest(nodes=3)
    assert audit.audit_interval(text, contract).ok
    monkeypatch.setattr(check.identity, "check", lambda *_: pytest.fail("run again"))
    assert audit.audit_interval(text, contract).compared
    # Another definition of the same program is another question.
    other = honest(nodes=3, batch=3)[1].definition
    with pytest.raises(pytest.fail.Exception):
        audit.audit_interval(text, dataclasses.replace(contract, definition=other))


def test_another_model_is_not_identical():
    """The definition reads the model's numbers: those of another are another function."""
    text, contract = honest(**WHOLE, sampling=Sampling(1.0))
    changes = [{"eps": 2e-6}, {"rope_theta": 1.1e4}]
    for change in changes:
        model = contract.definition.model
        plan = dataclasses.replace(model.plan, cfg=dataclasses.replace(model.plan.cfg, **change))
        other = dataclasses.replace(model, plan=plan)
        definition = dataclasses.replace(contract.definition, model=other)
        assert identical(text, dataclasses.replace(contract, definition=definition)), change
    for sampling in (Sampling(0.9), Sampling(0.0)):
        other = dataclasses.replace(contract.definition.model, sampling=sampling)
        definition = dataclasses.replace(contract.definition, model=other)
        assert identical(text, dataclasses.replace(contract, definition=definition)), sampling


def test_the_seed_repeats_a_check():
    text, contract = interval(**PLANTED_FUNCTION["low term"][1])
    first, again, other = (identical(text, contract, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert "(seed 1)" in first[0].text


def test_a_difference_is_named_with_its_place():
    want = np.arange(1, 7.0).reshape(2, 3)
    got = want.copy()
    got[1, 2] += 1e-9
    assert "row 1, coordinate [1, 2]: expected 6.0" in identity._difference(got, want)
    assert not identity._difference(want * (1 + 1e-15), want)
    assert identity._difference(got.astype(np.int32), want)
    changed = want * (1 + 1e-15)
    assert identity._difference(changed, want, exact=np.ones(want.shape, bool))
