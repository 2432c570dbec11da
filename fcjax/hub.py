"""Where a model comes from: a folder, or a Hugging Face hub id where there is a network."""

import pathlib

_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]


def model_folder(model: str) -> pathlib.Path:
    """The folder of a model given as a path or as a hub id such as "Qwen/Qwen2.5-1.5B".

    Raises:
      ValueError: there is no such folder, and no such model could be had from the hub.
    """
    path = pathlib.Path(model)
    if model and path.is_dir():
        return path
    if path.is_absolute() or model.count("/") != 1 or model.startswith("."):
        raise ValueError(f"model: expected a folder or a hub id owner/name, got {model!r}")
    from huggingface_hub import snapshot_download

    try:
        return pathlib.Path(snapshot_download(model, allow_patterns=_FILES))
    except Exception as e:  # whatever the network or the hub says
        raise ValueError(
            f"model: expected a folder, or a hub id that can be downloaded, got {model!r}"
            f" ({type(e).__name__}: {(str(e).splitlines() or [''])[0]})"
        ) from None
