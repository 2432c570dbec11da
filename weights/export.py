"""Flax parameters -> Hugging Face tensors, by the table of `fcjax.model.convert`."""

from collections.abc import Iterator, Mapping

import numpy as np

from fcjax.model import convert
from fcjax.model.config import ModelConfig
from fcjax.model.params import param_dims


def hf_tensors(cfg: ModelConfig, params: Mapping) -> Iterator[tuple[str, np.ndarray]]:
    """(Hugging Face name, tensor) for every parameter that `reference.get_params` names."""
    for path, dims in param_dims(cfg).items():
        for piece in convert.hf_parts(path):
            part, letters = np.asarray(params[path]), list(dims)
            if piece.slot is not None:
                fused = convert.fused_axis(dims)
                part = part[(slice(None),) * fused + (cfg.slots[piece.slot],)]
                letters[fused] = "G" if piece.slot == "q" else "1"
            order = [letters.index(letter) for axis in piece.axes for letter in axis]
            order += [i for i, letter in enumerate(letters) if letter == "1"]
            yield piece.name, part.transpose(order).reshape(piece.shape(cfg))
