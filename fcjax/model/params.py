"""Every parameter of a model: its dimensions, how it starts, and which models have it."""

import dataclasses

from fcjax.model.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Param:
    """One parameter.

    Attributes:
      dims: its dimension letters.
      start: what fresh ones are filled with: "normal", "ones" or "zeros".
      when: the property of `ModelConfig` that says whether a model has it; "" for every model.
    """

    dims: tuple[str, ...]
    start: str = "normal"
    when: str = ""


# One layer's parameters stand under "layers.<index>.".
LAYER_PARAMS = {
    "input_norm": Param(("D",), "ones"),
    "qkv": Param(("D", "K", "C", "H")),  # per KV group: G query heads, then its key, its value
    "qkv_bias": Param(("K", "C", "H"), "zeros", when="qkv_bias"),
    "q_norm": Param(("H",), "ones", when="qk_norm"),
    "k_norm": Param(("H",), "ones", when="qk_norm"),
    "out": Param(("K", "G", "H", "D")),
    "post_norm": Param(("D",), "ones"),
    "gate_up": Param(("D", "2", "F")),
    "down": Param(("F", "D")),
}
MODEL_PARAMS = {
    "embed": Param(("V", "D")),
    "norm": Param(("D",), "ones"),
    "head": Param(("V", "D"), when="untied"),  # a tied head reads the embedding table
}
PARAMS = LAYER_PARAMS | MODEL_PARAMS


def leaf(path: str) -> str:
    """The name of a parameter in the tables above: "qkv" of "layers.3.qkv"."""
    return path.rpartition(".")[2]


def present(cfg: ModelConfig, table: dict[str, Param]) -> dict[str, Param]:
    """Those parameters of a table that a model has."""
    return {name: p for name, p in table.items() if not p.when or getattr(cfg, p.when)}


def layer_path(layer: int, name: str) -> str:
    """Path of a layer's parameter."""
    return f"layers.{layer}.{name}"


def layer_params(params: dict, layer: int) -> dict:
    """Those of `params` that belong to one layer, by their names in the layer."""
    prefix = layer_path(layer, "")
    return {p.removeprefix(prefix): w for p, w in params.items() if p.startswith(prefix)}


def param_dims(cfg: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Dimension letters of every parameter by its path."""
    layer = present(cfg, LAYER_PARAMS)
    dims = {layer_path(i, name): p.dims for i in range(cfg.L) for name, p in layer.items()}
    return dims | {name: p.dims for name, p in present(cfg, MODEL_PARAMS).items()}


def param_shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter by its path, for example ``layers.3.qkv -> (D, K, C, H)``."""
    return {path: tuple(map(cfg.size, dims)) for path, dims in param_dims(cfg).items()}
