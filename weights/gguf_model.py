"""Sizes and tensors of a GGUF file, as Hugging Face has them."""

from collections.abc import Iterator

import gguf
import numpy as np

from fcjax.model import convert
from fcjax.model.config import FAMILIES, ModelConfig
from weights.gguf_meta import Meta

ARCHITECTURES = {"qwen2": gguf.MODEL_ARCH.QWEN2, "llama": gguf.MODEL_ARCH.LLAMA}
_SUFFIXES = (".weight", ".bias")


class GgufModel:
    """One GGUF file whose metadata and tensor list have been checked; weights are read later."""

    def __init__(self, path):
        self.meta = Meta(path)
        if self.meta.arch not in ARCHITECTURES:
            raise ValueError(
                f"general.architecture: expected {' or '.join(ARCHITECTURES)},"
                f" got {self.meta.arch!r} ({path})"
            )
        self.by_name = {tensor.name: tensor for tensor in self.meta.reader.tensors}
        self.cfg = read_config(self.meta, tied="output.weight" not in self.by_name)
        self.sources = self._match()

    def _match(self) -> dict[str, str]:
        """The GGUF tensor of each Hugging Face tensor."""
        names = gguf.get_tensor_name_map(ARCHITECTURES[self.meta.arch], self.cfg.L)
        sources, faults = {}, self.meta.faults
        for name, shape in convert.hf_shapes(self.cfg).items():
            source = names.get_name(name, _SUFFIXES)
            sources[name] = source
            if source not in self.by_name:
                faults.append(f"{source}: expected a tensor, got nothing")
                continue
            got = tuple(map(int, reversed(self.by_name[source].shape)))
            if got != shape:
                faults.append(f"{source}: expected shape {shape}, got {got}")
        extra = sorted(self.by_name.keys() - set(sources.values()))
        faults += [f"{name}: expected no such tensor" for name in extra]
        self.meta.check()
        return sources

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """(Hugging Face name, float32 array) of every tensor, one dequantized at a time."""
        shapes = convert.hf_shapes(self.cfg)
        for name, source in self.sources.items():
            tensor = self.by_name[source]
            try:
                array = gguf.dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError:
                raise ValueError(
                    f"{source}: expected a type that gguf can dequantize,"
                    f" got {tensor.tensor_type.name} ({self.meta.path})"
                ) from None
            array = array.reshape(shapes[name]).astype(np.float32, copy=False)
            if self.meta.arch == "llama" and ("q_proj" in name or "k_proj" in name):
                array = half_split_rows(array, self.cfg.H)
            yield name, array


def read_config(meta: Meta, tied: bool) -> ModelConfig:
    """The sizes that a GGUF file states; a key of the architecture that is unknown is a fault."""
    arch = meta.arch
    heads = meta.get(f"{arch}.attention.head_count", int)
    groups = meta.get(f"{arch}.attention.head_count_kv", int)
    hidden = meta.get(f"{arch}.embedding_length", int)
    vocab = len(meta.get("tokenizer.ggml.tokens", list) or ())
    sizes = {
        "L": meta.get(f"{arch}.block_count", int),
        "D": hidden,
        "F": meta.get(f"{arch}.feed_forward_length", int),
        "max_len": meta.get(f"{arch}.context_length", int),
        "eps": meta.get(f"{arch}.attention.layer_norm_rms_epsilon", float),
        "rope_theta": meta.get(f"{arch}.rope.freq_base", float),
    }
    meta.check()
    for key, value in {**sizes, "head_count": heads, "head_count_kv": groups}.items():
        if not value > 0:
            meta.faults.append(f"{key}: expected a positive number, got {value}")
    meta.check()
    if heads % groups or hidden % heads:
        meta.faults.append(
            f"{arch}.attention.head_count: expected a multiple of head_count_kv {groups} that"
            f" divides embedding_length {hidden}, got {heads}"
        )
        meta.check()
    head_dim = meta.get(f"{arch}.attention.key_length", int, hidden // heads)
    meta.only(f"{arch}.attention.value_length", head_dim)
    meta.only(f"{arch}.rope.dimension_count", head_dim)
    meta.only(f"{arch}.rope.scaling.type", "none")
    meta.only(f"{arch}.vocab_size", vocab)
    known = {
        "block_count", "embedding_length", "feed_forward_length", "context_length",
        "attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon",
        "attention.key_length", "attention.value_length", "vocab_size",
        "rope.freq_base", "rope.dimension_count", "rope.scaling.type",
    }
    for key in sorted(meta.values):
        if key.startswith(f"{arch}.") and key.removeprefix(f"{arch}.") not in known:
            meta.faults.append(f"{key}: expected no such key (not implemented)")
    meta.check()
    # GGUF keeps both as f32; the shortest decimal that is the same f32 is what was meant.
    sizes |= {key: float(str(np.float32(sizes[key]))) for key in ("eps", "rope_theta")}
    sizes |= {"K": groups, "G": heads // groups, "H": head_dim, "V": vocab}
    # The architectures have the names of the families.
    return ModelConfig(**sizes, **FAMILIES[arch].has, tied=tied, dtype="float32")


def half_split_rows(w, head_dim: int) -> np.ndarray:
    """Undo llama.cpp's order of the q and k rows.

    Its llama rotates the neighbours (2h, 2h + 1) of a head, Hugging Face's and ours (h, h + H/2):
    see `permute` in llama.cpp's convert_hf_to_gguf.py, which this inverts.
    """
    rows = w.reshape(-1, head_dim // 2, 2, *w.shape[1:])
    return rows.swapaxes(1, 2).reshape(w.shape)
