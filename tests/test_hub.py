"""Where a model comes from."""

import huggingface_hub
import pytest

from fcjax import hub


def test_a_folder_is_itself(tmp_path):
    assert hub.model_folder(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    "model", ["/none/such", "none", "./none/such", "../none", "a/b/c", "", "/none"]
)
def test_what_is_neither_folder_nor_id(model, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)  # would be a TypeError
    with pytest.raises(ValueError) as e:
        hub.model_folder(model)
    assert str(e.value) == f"model: expected a folder or a hub id owner/name, got {model!r}"


def test_a_hub_id_is_downloaded(tmp_path, monkeypatch):
    calls = []

    def download(model, allow_patterns):
        calls.append((model, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.model_folder("Qwen/Qwen2.5-1.5B") == tmp_path
    ((model, patterns),) = calls
    assert model == "Qwen/Qwen2.5-1.5B"
    assert {"*.json", "*.safetensors"} <= set(patterns)
    assert not any("bin" in p or "pt" in p for p in patterns)  # no pickles


def test_no_network_is_one_clear_line(monkeypatch):
    def download(model, allow_patterns):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ValueError) as e:
        hub.model_folder("Qwen/Qwen2.5-1.5B")
    assert str(e.value) == (
        "model: expected a folder, or a hub id that can be downloaded, got 'Qwen/Qwen2.5-1.5B'"
        " (ConnectionError: no route)"
    )
