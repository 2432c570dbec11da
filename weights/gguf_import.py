"""A GGUF file -> a Hugging Face model folder."""

import importlib.util
import pathlib

from weights import gguf_model, gguf_tokenizer, hf_dir


def convert(gguf_path, out) -> str:
    """Write the folder `out` from a GGUF file; returns the digest of its manifest.

    Raises:
      ValueError: `out` exists, or the file is missing, damaged, or of a kind not implemented here.
    """
    hf_dir.refuse_existing(out)
    model = gguf_model.GgufModel(gguf_path)
    ids = gguf_tokenizer.token_ids(model.meta)
    files = gguf_tokenizer.files(model.meta, model.cfg)
    return hf_dir.write(
        out, model.cfg, model.tensors(), token_ids=ids,
        files=files | {"README.md": _readme(model)},
    )


def find_in_package(package: str) -> pathlib.Path:
    """The only .gguf file of an installed package, which is not imported."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # of the package that a dotted name begins with
        spec = None
    folders = (spec and spec.submodule_search_locations) or []
    paths = sorted(path for folder in folders for path in pathlib.Path(folder).rglob("*.gguf"))
    if len(paths) != 1:
        where = f"in {list(folders)}" if spec else "not installed"
        raise ValueError(f"package: expected one .gguf file, got {len(paths)} ({package}, {where})")
    return paths[0]


def _readme(model: gguf_model.GgufModel) -> str:
    general = {
        key.removeprefix("general."): value
        for key, value in model.meta.values.items()
        if key in ("general.name", "general.license", "general.organization")
    }
    rows = "\n".join(f"- {key}: {value}" for key, value in sorted(general.items()))
    return f"""# {model.meta.path.name}, dequantized

Written by `weights/import_gguf.py`; what the file says about itself:

- architecture: {model.meta.arch}
{rows}
"""
