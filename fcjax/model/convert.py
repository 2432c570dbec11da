"""Hugging Face tensors <-> Flax parameters: one table, read block by block and checked both ways.

A parameter of `fcjax.model.reference` is put together from one to three Hugging Face tensors. The
table says for each of those which dimension letters its axes run over; slicing, transposing and the
check of names and shapes all follow from it.
"""

import dataclasses
import math

import numpy as np

from fcjax.model.config import ModelConfig
from fcjax.model.params import param_dims


@dataclasses.dataclass(frozen=True)
class HfTensor:
    """One Hugging Face tensor and the place of its numbers in a Flax parameter.

    Attributes:
      name: the tensor's name, without the layer's prefix.
      axes: per axis of the tensor, the letters that it runs over, outermost first: "KGH" is an axis
        of K * G * H rows.
      slot: for a part of a fused parameter, its place on the fused axis ("C" or "2"): "q" fills
        the first G slots, "k" and "v" the two after them, "gate" and "up" one each.
    """

    name: str
    axes: tuple[str, ...]
    slot: str | None = None

    def shape(self, cfg: ModelConfig) -> tuple[int, ...]:
        """Shape of the whole tensor in the file."""
        return tuple(math.prod(map(cfg.size, axis)) for axis in self.axes)


LAYER_TABLE = {
    "input_norm": (HfTensor("input_layernorm.weight", ("D",)),),
    "qkv": (
        HfTensor("self_attn.q_proj.weight", ("KGH", "D"), "q"),
        HfTensor("self_attn.k_proj.weight", ("KH", "D"), "k"),
        HfTensor("self_attn.v_proj.weight", ("KH", "D"), "v"),
    ),
    "qkv_bias": (
        HfTensor("self_attn.q_proj.bias", ("KGH",), "q"),
        HfTensor("self_attn.k_proj.bias", ("KH",), "k"),
        HfTensor("self_attn.v_proj.bias", ("KH",), "v"),
    ),
    "q_norm": (HfTensor("self_attn.q_norm.weight", ("H",)),),
    "k_norm": (HfTensor("self_attn.k_norm.weight", ("H",)),),
    "out": (HfTensor("self_attn.o_proj.weight", ("D", "KGH")),),
    "post_norm": (HfTensor("post_attention_layernorm.weight", ("D",)),),
    "gate_up": (
        HfTensor("mlp.gate_proj.weight", ("F", "D"), "gate"),
        HfTensor("mlp.up_proj.weight", ("F", "D"), "up"),
    ),
    "down": (HfTensor("mlp.down_proj.weight", ("D", "F")),),
}
MODEL_TABLE = {
    "embed": (HfTensor("model.embed_tokens.weight", ("V", "D")),),
    "norm": (HfTensor("model.norm.weight", ("D",)),),
    "head": (HfTensor("lm_head.weight", ("V", "D")),),
}


def hf_parts(path: str) -> list[HfTensor]:
    """The Hugging Face tensors, with full names, that make up the Flax parameter at `path`."""
    if not path.startswith("layers."):
        return list(MODEL_TABLE[path])
    _, layer, name = path.split(".")
    prefix = f"model.layers.{layer}."
    return [dataclasses.replace(t, name=prefix + t.name) for t in LAYER_TABLE[name]]


def hf_shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a Hugging Face folder of this model must hold."""
    return {p.name: p.shape(cfg) for path in param_dims(cfg) for p in hf_parts(path)}


def read_block(cfg: ModelConfig, path: str, index: tuple[slice, ...], read) -> np.ndarray:
    """One block of a Flax parameter.

    Args:
      cfg: the model's sizes.
      path: the parameter, for example ``layers.3.qkv``.
      index: one slice (step 1, inside the bounds) per axis of the parameter; the fused axis "C" or
        "2" and everything after the first letter of a fused Hugging Face axis must be whole.
      read: ``read(name, slices) -> np.ndarray`` gives a block of a Hugging Face tensor.

    Returns:
      An array of the index's shape, in the type of the file.
    """
    dims = param_dims(cfg)[path]
    span = {d: s.indices(cfg.size(d))[:2] for d, s in zip(dims, index, strict=True)}
    block = None
    for piece in hf_parts(path):
        slices, letters, lengths = [], [], []
        for axis in piece.axes:
            start, stop = span[axis[0]]
            inner = [cfg.size(c) for c in axis[1:]]
            slices.append(slice(start * math.prod(inner), stop * math.prod(inner)))
            letters += axis
            lengths += [stop - start, *inner]
        part = read(piece.name, tuple(slices)).reshape(lengths)
        # In the parameter's order; the query heads of a group lie along its "C" axis.
        order = [c for d in dims for c in (d, "G" if d == "C" else "") if c and c in letters]
        part = part.transpose([letters.index(c) for c in order])
        if piece.slot is None:
            return part
        if block is None:
            block = np.empty([stop - start for start, stop in span.values()], part.dtype)
        fused = fused_axis(dims)
        if piece.slot != "q":  # one slot, which the file has no axis for
            part = np.expand_dims(part, fused)
        block[(slice(None),) * fused + (cfg.slots[piece.slot],)] = part
    return block


def fused_axis(dims: tuple[str, ...]) -> int:
    """Which axis of a fused parameter its parts stand on."""
    return dims.index("C") if "C" in dims else dims.index("2")
