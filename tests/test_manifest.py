"""The manifest notices every change of a folder that it covers."""

import hashlib
import json

import pytest

from fcjax import manifest


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    (folder / "params" / "d").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "params" / "d" / "data").write_bytes(bytes(range(256)))
    manifest.write(folder)
    return folder


def refusal(folder, **kwargs) -> str:
    with pytest.raises(ValueError) as e:
        manifest.verify(folder, **kwargs)
    assert "\n" not in str(e.value) and str(folder) in str(e.value)
    assert str(e.value).startswith("manifest: ")
    return str(e.value)


def test_lists_every_file_with_size_and_sha256(folder):
    listed = json.loads((folder / "manifest.json").read_text())
    data = bytes(range(256))
    assert listed == {
        "config.json": {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()},
        "params/d/data": {"size": 256, "sha256": hashlib.sha256(data).hexdigest()},
    }


def test_digest_is_of_the_content_alone(folder, tmp_path):
    digest = manifest.verify(folder)
    assert len(digest) == 64
    assert manifest.write(folder) == digest  # the manifest does not list itself
    moved = folder.rename(tmp_path / "elsewhere")
    assert manifest.verify(moved) == digest
    (moved / "manifest.json").unlink()
    assert manifest.verify(moved) == digest  # the same files, unchecked
    (moved / "config.json").write_text("[]")
    assert manifest.verify(moved) != digest


def test_one_flipped_bit(folder):
    path = folder / "params" / "d" / "data"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    said = refusal(folder)
    right, wrong = (hashlib.sha256(b).hexdigest()[:12] for b in (bytes(range(256)), data))
    assert f"params/d/data: expected sha256 {right}..., got {wrong}..." in said
    assert "config.json" not in said


def test_truncated(folder):
    path = folder / "params" / "d" / "data"
    path.write_bytes(path.read_bytes()[:-1])
    assert "params/d/data: expected 256 bytes, got 255" in refusal(folder)


def test_all_faults_in_one_message(folder):
    (folder / "params" / "d" / "data").unlink()
    (folder / "config.json").write_text("{ }")
    (folder / "params" / "more").write_text("")
    said = refusal(folder)
    assert "params/d/data: expected in the folder, got nothing" in said
    assert "config.json: expected 2 bytes, got 3" in said
    assert "params/more: expected no such file" in said


def test_missing_manifest_where_one_is_required(folder):
    manifest.verify(folder, required=True)
    (folder / "manifest.json").unlink()
    assert "expected manifest.json, got nothing" in refusal(folder, required=True)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b'{"config.json": 3}', b'{"config.json": {"size": 2}}',
     b'{"config.json": {"size": 2, "sha256": 5}}'],
)
def test_unreadable_manifest(folder, content):
    (folder / "manifest.json").write_bytes(content)
    refusal(folder)
