"""The sizes of a model, and the dimension key that every name in fcjax is built from.

Dimension key::

    B batch            T new tokens        S cache length
    D hidden           F intermediate      V vocabulary
    K KV groups        G query heads per KV group
    C = G + 2          heads of one group in the fused QKV kernel: G query heads, one key, one value
    H head dimension   N nodes

In a name, a lower-case ``n`` after a dimension means "split over nodes" (``x_BTDn``), and a
trailing ``_U`` means "partial, not yet reduced" (``out_BTD_U``).
"""

import dataclasses
import pathlib
import sys

from fcjax import files

DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Family:
    """What the models of one Hugging Face `model_type` have in common.

    Attributes:
      architecture: the class that a config.json names.
      has: which parameters they have, as fields of `ModelConfig`.
      only: keys of which one value is implemented, which holds where the key is absent.
      writes: keys of its own in a config.json that is written.
    """

    architecture: str
    has: dict[str, bool]
    only: dict
    writes: dict


_NO_BIAS = {"attention_bias": False, "mlp_bias": False}
_NO_WINDOW = {"sliding_window": None, "use_sliding_window": False}
FAMILIES = {
    # q, k and v have biases, the output projection has none.
    "qwen2": Family(
        architecture="Qwen2ForCausalLM",
        has={"qkv_bias": True, "qk_norm": False},
        only={"attention_bias": True, "use_mrope": False},
        writes=_NO_WINDOW,
    ),
    "llama": Family(
        architecture="LlamaForCausalLM",
        has={"qkv_bias": False, "qk_norm": False},
        only=_NO_BIAS | {"pretraining_tp": 1, "rope_interleaved": False},
        writes=_NO_BIAS,
    ),
    "qwen3": Family(
        architecture="Qwen3ForCausalLM",
        has={"qkv_bias": False, "qk_norm": True},
        only={"attention_bias": False},
        writes=_NO_WINDOW | {"attention_bias": False},
    ),
}

# The keys of a config.json that are fields of `ModelConfig` as they are.
_KEYS = {
    "L": "num_hidden_layers",
    "D": "hidden_size",
    "K": "num_key_value_heads",
    "F": "intermediate_size",
    "V": "vocab_size",
    "tied": "tie_word_embeddings",
    "eps": "rms_norm_eps",
    "max_len": "max_position_embeddings",
}
# Keys of a config.json that do not change what the decoder computes at inference.
_IGNORED_KEYS = frozenset(
    """
    _name_or_path architectures attention_dropout bos_token_id chunk_size_feed_forward eos_token_id
    id2label initializer_range is_decoder is_encoder_decoder is_llama_config label2id
    max_window_layers output_attentions output_hidden_states pad_token_id return_dict
    transformers_version use_cache
    """.split()
)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes of one decoder; the field names are the dimension key of this module."""

    L: int  # layers
    D: int  # hidden size, the width of the residual stream
    K: int  # KV groups: key/value heads, each with the G query heads that read it
    G: int  # query heads per KV group
    H: int  # dimension of one head; even, because RoPE rotates its two halves
    F: int  # intermediate size of the MLP
    V: int  # vocabulary rows of the embedding table
    tied: bool  # the head reads the embedding table
    eps: float  # added to the mean square in every RMSNorm
    rope_theta: float  # base of the rotary frequencies
    max_len: int  # positions that the model was made for
    dtype: str = "bfloat16"  # type of the numbers in the weight files, not of the computation
    qkv_bias: bool = True  # q, k and v have biases
    qk_norm: bool = False  # each head of q and k is normalised before RoPE

    @property
    def untied(self) -> bool:
        """The head has a table of its own."""
        return not self.tied

    @property
    def C(self) -> int:
        """Heads of one KV group in the fused QKV kernel: G queries, one key, one value."""
        return self.G + 2

    @property
    def slots(self) -> dict[str, slice]:
        """Where the parts of fused values and kernels stand on their "C" or "2" axis."""
        G = self.G
        q, k, v = slice(0, G), slice(G, G + 1), slice(G + 1, G + 2)
        return {"q": q, "k": k, "v": v, "gate": slice(0, 1), "up": slice(1, 2)}

    @property
    def model_type(self) -> str:
        """Hugging Face's name of the family."""
        own = {"qkv_bias": self.qkv_bias, "qk_norm": self.qk_norm}
        return next(name for name, family in FAMILIES.items() if family.has == own)

    def describe(self) -> dict:
        """The config as plain data, for records.

        What not every record has, as it came later, is left out where it is as it was before.
        """
        later = ("qkv_bias", "qk_norm")
        usual = {f.name: f.default for f in dataclasses.fields(self) if f.name in later}
        return {k: x for k, x in vars(self).items() if k not in usual or x != usual[k]}

    def size(self, dim: str) -> int:
        """Size of one dimension letter; a digit stands for itself (``"2"`` is gate and up)."""
        return int(dim) if dim.isdigit() else getattr(self, dim)

    @classmethod
    def from_hf(cls, path) -> "ModelConfig":
        """Read a Hugging Face ``config.json`` (the file, or the folder that holds it).

        The file is read by itself and not through ``transformers.Qwen2Config``, whose defaults
        fill in what a file leaves out (32 KV heads, a rope base of 1e4).

        Raises:
          ValueError: the file is missing or not JSON, a key is missing, has the wrong type, or is
            one that this model code does not implement; all faults of a file are in one message.
        """
        path = pathlib.Path(path)
        if path.is_dir():
            path = path / "config.json"
        reader = _Reader(files.read_object(path))
        cfg = reader.model_config()
        if reader.faults:
            raise ValueError(f"config: {'; '.join(reader.faults)} ({path})")
        return cfg

    def to_hf(self) -> dict:
        """The Hugging Face ``config.json`` of this model, as a dict (without token ids)."""
        family = FAMILIES[self.model_type]
        content = {key: getattr(self, field) for field, key in _KEYS.items()} | {
            "architectures": [family.architecture],
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "model_type": self.model_type,
            "num_attention_heads": self.K * self.G,
            "rope_theta": self.rope_theta,
            "torch_dtype": self.dtype,
            "use_cache": True,
        }
        if self.H * self.K * self.G != self.D:  # transformers derives it as hidden_size // heads
            content["head_dim"] = self.H
        return dict(sorted((content | family.writes).items()))


class _Reader:
    """Takes the known keys out of a config and collects what is wrong with it."""

    def __init__(self, raw: dict):
        self.raw = raw
        self.faults: list[str] = []

    def take(self, key: str, kind):
        """The value of a required key; `kind` is int, float or bool."""
        if key not in self.raw:
            self.faults.append(f"{key}: expected {kind.__name__}, got nothing")
            return None
        value = self.raw.pop(key)
        # bool is an int in Python, and an integer is a fine float in JSON.
        right = type(value) is kind or (kind is float and type(value) is int)
        right = right and (kind is bool or 0 < value <= sys.float_info.max)
        if not right:
            positive = "" if kind is bool else "a positive "
            self.faults.append(f"{key}: expected {positive}{kind.__name__}, got {value!r}")
            return None
        return kind(value)

    def only(self, key: str, implemented):
        """A key of which one value is implemented, which holds where the key is absent."""
        value = self.raw.pop(key, implemented)
        if value != implemented:
            self.faults.append(f"{key}: expected {implemented!r}, got {value!r} (not implemented)")

    def family(self) -> Family:
        """The family that `model_type` names; an unknown one is read as qwen2."""
        name, known = self.raw.pop("model_type", None), ", ".join(map(repr, FAMILIES))
        if name not in FAMILIES:
            got = "nothing" if name is None else f"{name!r} (not implemented)"
            self.faults.append(f"model_type: expected one of {known}, got {got}")
        return FAMILIES.get(name, FAMILIES["qwen2"])

    def dtype(self) -> str:
        """Type of the stored numbers: `torch_dtype` up to transformers 4, `dtype` since 5."""
        old = self.raw.pop("torch_dtype", None)
        value = self.raw.pop("dtype", old)
        if value not in DTYPES or old not in (None, value):
            got = f"{value!r}" if old in (None, value) else f"{value!r} and {old!r}"
            self.faults.append(f"torch_dtype: expected one of {', '.join(DTYPES)}, got {got}")
        return value

    def rope_theta(self):
        """Base frequency: top level up to transformers 4, under rope_parameters since 5."""
        for where in "rope_parameters", "rope_scaling":
            table = self.raw.pop(where, None) or {}
            if not isinstance(table, dict):
                self.faults.append(f"{where}: expected an object, got {table!r}")
                continue
            kind = table.get("rope_type", table.get("type", "default"))
            extra = sorted(set(table) - {"rope_type", "type", "rope_theta"})
            if kind != "default" or extra:
                self.faults.append(
                    f"{where}: expected rope_type 'default', got {kind!r} with {extra}"
                    " (not implemented)"
                )
            theta = table.get("rope_theta")
            if theta is not None and self.raw.setdefault("rope_theta", theta) != theta:
                self.faults.append(
                    f"rope_theta: expected one value, got {self.raw['rope_theta']!r} and"
                    f" {where}.rope_theta {theta!r}"
                )
        return self.take("rope_theta", float)

    def model_config(self) -> ModelConfig | None:
        family = self.family()
        self.only("hidden_act", "silu")
        for key, value in family.only.items():
            self.only(key, value)
        if self.raw.pop("use_sliding_window", False):
            self.faults.append("use_sliding_window: expected False, got True (not implemented)")
        self.raw.pop("sliding_window", None)  # says nothing unless use_sliding_window is set
        kind = {f.name: f.type for f in dataclasses.fields(ModelConfig)}
        known = {field: self.take(key, kind[field]) for field, key in _KEYS.items()}
        known |= {"rope_theta": self.rope_theta(), "dtype": self.dtype()}
        heads, head_dim = self.take("num_attention_heads", int), self.raw.pop("head_dim", None)
        layers, kinds = known["L"], self.raw.pop("layer_types", None)
        if kinds is not None and kinds != ["full_attention"] * (layers or 0):
            every = f"'full_attention' for each of {layers} layers"
            self.faults.append(f"layer_types: expected {every}, got {kinds}")
        unknown = sorted(set(self.raw) - _IGNORED_KEYS)
        if unknown:
            self.faults.append(f"unknown keys {unknown}: expected only those that are implemented")
        if self.faults:
            return None
        hidden, groups = known["D"], known["K"]
        if heads % groups:
            multiple = f"a multiple of num_key_value_heads {groups}"
            self.faults.append(f"num_attention_heads: expected {multiple}, got {heads}")
        if head_dim is None:
            head_dim, rest = divmod(hidden, heads)
            if rest:
                self.faults.append(
                    f"hidden_size: expected a multiple of num_attention_heads {heads}, got {hidden}"
                )
        if type(head_dim) is not int or head_dim % 2 or head_dim < 1:
            self.faults.append(f"head_dim: expected an even int above 0, got {head_dim!r}")
        return ModelConfig(**known, G=heads // groups, H=head_dim, **family.has)


def _qwen25(heads, **sizes) -> ModelConfig:
    G, H = heads // sizes["K"], sizes["D"] // heads
    return ModelConfig(**sizes, G=G, H=H, eps=1e-6, rope_theta=1e6, max_len=32768)


# Sizes from the config.json files of Qwen/Qwen2.5-*-Instruct. The base models have the same sizes;
# some of them have longer contexts (131072) or eps 1e-5, which only their own files tell.
QWEN25 = {
    "0.5b": _qwen25(L=24, D=896, heads=14, K=2, F=4864, V=151936, tied=True),
    "1.5b": _qwen25(L=28, D=1536, heads=12, K=2, F=8960, V=151936, tied=True),
    "3b": _qwen25(L=36, D=2048, heads=16, K=2, F=11008, V=151936, tied=True),
    "7b": _qwen25(L=28, D=3584, heads=28, K=4, F=18944, V=152064, tied=False),
    "14b": _qwen25(L=48, D=5120, heads=40, K=8, F=13824, V=152064, tied=False),
    "32b": _qwen25(L=64, D=5120, heads=40, K=8, F=27648, V=152064, tied=False),
    "72b": _qwen25(L=80, D=8192, heads=64, K=8, F=29568, V=152064, tied=False),
}
