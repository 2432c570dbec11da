"""Flax parameters -> Hugging Face tensors, by the table of `fcjax.model.convert`."""

from collections.abc import Iterator, Mapping

import numpy as np

from fcjax.model import convert
from fcjax.model.config import ModelConfig
from fcjax.model.params import param_dims


def hf_tensors(cfg: ModelConfig, params: Mapping) -> Iterator[tuple[str, np.ndarray]]:
    """(Hugging Face name, tensor) for every parameter that `reference.get_params` names."""
    for path, dims in param_dims(cfg).items():
        for piece in convert.pieces(path):
            part, letters = np.asarray(params[path]), list(dims)
            if piece.slot is not None:
                fused = next(i for i, d in enumerate(dims) if d in ("C", "2"))
                part = part[(slice(None),) * fused + (convert.slot(cfg, piece.slot),)]
                letters[fused : fused + 1] = ["G"] if piece.slot == "q" else []
            order = [letters.index(letter) for axis in piece.axes for letter in axis]
            yield piece.name, part.transpose(order).reshape(piece.shape(cfg))
