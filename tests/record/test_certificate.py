"""A certificate can be repeated from its files, and any changed byte is noticed."""

import pytest

from experiments.adversary.programs import LENGTH, SAMPLED, TINY, WHOLE, honest, interval_model
from fcjax import audit
from fcjax.record import certificate
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.ownership import Plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    model = ShardedModel(Plan(TINY, 3), Interval(0, 1))
    verdict = audit.audit_interval(*honest(nodes=3, batch=2))
    certificate.write(folder, verdict, model, batch=2, tokens=1, length=LENGTH, dtype="float32")
    return folder


def test_verify_repeats_the_audit(folder):
    found = certificate.verify(folder)
    assert found.ok and len(found.before) == 8 and len(found.after) == 1


@pytest.mark.parametrize("name", [certificate.NAME, certificate.PROGRAM])
def test_one_changed_byte(folder, name):
    path = folder / name
    honest = path.read_bytes()
    try:
        for position in range(0, len(honest), len(honest) // 97):
            changed = bytearray(honest)
            changed[position] ^= 1
            path.write_bytes(changed)
            with pytest.raises(ValueError):
                certificate.verify(folder)
    finally:
        path.write_bytes(honest)
    assert certificate.verify(folder).ok


def test_the_whole_model_with_its_sampling(tmp_path):
    options = WHOLE | {"nodes": 3, "batch": 3, "sampling": SAMPLED}
    verdict = audit.audit_interval(*honest(**options))
    options.pop("batch")
    model = interval_model(**options).model
    certificate.write(tmp_path, verdict, model, batch=3, tokens=1, length=LENGTH, dtype="float32")
    found = certificate.verify(tmp_path)
    assert found.ok and len(found.before) == len(verdict.before) == 2 * 6 + 2 + 20


def test_another_sampling_is_another_contract(tmp_path):
    verdict = audit.audit_interval(*honest(**WHOLE, sampling=SAMPLED))
    greedy = interval_model(2, **WHOLE).model
    certificate.write(tmp_path, verdict, greedy, batch=1, tokens=1, length=LENGTH, dtype="float32")
    with pytest.raises(ValueError, match="verdict: expected"):
        certificate.verify(tmp_path)
