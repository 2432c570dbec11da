"""Every parameter of a model: its dimensions, by its path."""

from fcjax.model.config import ModelConfig

# Dimensions of every parameter. One layer's parameters stand under "layers.<index>.".
LAYER_PARAMS = {
    "input_norm": ("D",),
    "qkv": ("D", "K", "C", "H"),  # per KV group: G query heads, then its key, then its value
    "qkv_bias": ("K", "C", "H"),
    "out": ("K", "G", "H", "D"),
    "post_norm": ("D",),
    "gate_up": ("D", "2", "F"),
    "down": ("F", "D"),
}


MODEL_PARAMS = {"embed": ("V", "D"), "norm": ("D",), "head": ("V", "D")}  # no head if tied


def param_shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter by its path, for example ``layers.3.qkv -> (D, K, C, H)``."""
    return {path: tuple(map(cfg.size, dims)) for path, dims in param_dims(cfg).items()}


def param_dims(cfg: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Dimension letters of every parameter by its path."""
    dims = {
        f"layers.{layer}.{name}": d for layer in range(cfg.L) for name, d in LAYER_PARAMS.items()
    }
    dims |= {n: d for n, d in MODEL_PARAMS.items() if not (cfg.tied and n == "head")}
    return dims
