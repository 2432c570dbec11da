"""Small random models for the tests, made without torch and without the code under test.

The names and shapes of the files are spelled out here, and so is how q, k, v and gate, up are
fused: `fcjax.model.convert` derives both from its table, which these are to check.
"""

import json
import pathlib

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from fcjax.model.config import ModelConfig

# Sizes differ from one another, so that a mixed-up axis is a shape error, and no split is even for
# every N up to 7.
_COMMON = {"eps": 1e-6, "rope_theta": 1e4, "max_len": 128, "dtype": "float32"}
MHA = ModelConfig(L=3, D=40, K=5, G=1, H=8, F=58, V=67, tied=False, **_COMMON)
GQA = ModelConfig(L=3, D=84, K=2, G=7, H=6, F=58, V=67, tied=True, **_COMMON)  # 14 q, 2 kv heads
THREE = ModelConfig(L=3, D=46, K=3, G=2, H=10, F=58, V=67, tied=True, **_COMMON)  # head_dim given
UNTIED = ModelConfig(L=4, D=46, K=3, G=2, H=10, F=58, V=67, tied=False, **_COMMON)
# Llama's: q, k and v have no biases.
LLAMA = ModelConfig(L=3, D=60, K=3, G=2, H=10, F=58, V=67, tied=True, qkv_bias=False, **_COMMON)
# Qwen3's: heads of q and k are normalised, and their size is not D over their number.
QWEN3 = ModelConfig(
    L=3, D=46, K=3, G=2, H=10, F=58, V=67, tied=True, qkv_bias=False, qk_norm=True, **_COMMON
)
ALL = {"qwen3": QWEN3, "llama": LLAMA, "mha": MHA, "gqa": GQA, "three": THREE, "untied": UNTIED}

TYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def hf_shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes as the `state_dict()` of the Hugging Face model has them."""
    q, kv = cfg.K * cfg.G * cfg.H, cfg.K * cfg.H
    shapes = {"model.embed_tokens.weight": (cfg.V, cfg.D), "model.norm.weight": (cfg.D,)}
    if not cfg.tied:
        shapes["lm_head.weight"] = (cfg.V, cfg.D)
    for i in range(cfg.L):
        layer = {
            "input_layernorm.weight": (cfg.D,),
            "self_attn.q_proj.weight": (q, cfg.D),
            "self_attn.q_proj.bias": (q,),
            "self_attn.k_proj.weight": (kv, cfg.D),
            "self_attn.k_proj.bias": (kv,),
            "self_attn.v_proj.weight": (kv, cfg.D),
            "self_attn.v_proj.bias": (kv,),
            "self_attn.o_proj.weight": (cfg.D, q),
            "post_attention_layernorm.weight": (cfg.D,),
            "mlp.gate_proj.weight": (cfg.F, cfg.D),
            "mlp.up_proj.weight": (cfg.F, cfg.D),
            "mlp.down_proj.weight": (cfg.D, cfg.F),
        }
        if not cfg.qkv_bias:
            layer = {name: shape for name, shape in layer.items() if not name.endswith("bias")}
        if cfg.qk_norm:
            layer |= {f"self_attn.{n}_norm.weight": (cfg.H,) for n in "qk"}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def hf_tensors(cfg: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors with the spread of trained ones: gains off one, biases of order one."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in hf_shapes(cfg).items():
        x = rng.standard_normal(shape)
        if name.endswith("norm.weight"):
            x = 1 + 0.3 * x
        elif name.endswith("bias"):
            x = 0.5 * x
        elif name == "model.embed_tokens.weight":
            x = 0.2 * x  # else the layers would be small beside it, and a tied model repeat itself
        else:
            x = 2 * x / np.sqrt(shape[1])
        tensors[name] = x.astype(TYPES[cfg.dtype])
    return tensors


def fused_params(cfg: ModelConfig, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The Flax parameters that those tensors make up, put together by hand."""
    D, K, G, H = cfg.D, cfg.K, cfg.G, cfg.H

    def groups(i, kind):
        """[.., K, G + 2, H]: the transposed kernels, or the biases, of q, k and v side by side."""
        q, k, v = (tensors[f"model.layers.{i}.self_attn.{n}_proj.{kind}"].T for n in "qkv")
        lead = q.shape[:-1]
        parts = q.reshape(*lead, K, G, H), k.reshape(*lead, K, 1, H), v.reshape(*lead, K, 1, H)
        return np.concatenate(parts, axis=-2)

    params = {"embed": tensors["model.embed_tokens.weight"], "norm": tensors["model.norm.weight"]}
    if not cfg.tied:
        params["head"] = tensors["lm_head.weight"]
    for i in range(cfg.L):
        hf = {n.removeprefix(f"model.layers.{i}."): x for n, x in tensors.items()}
        layer = {
            "input_norm": hf["input_layernorm.weight"],
            "qkv": groups(i, "weight"),
            **(
                {f"{n}_norm": hf[f"self_attn.{n}_norm.weight"] for n in "qk"} if cfg.qk_norm else {}
            ),
            **({"qkv_bias": groups(i, "bias")} if cfg.qkv_bias else {}),
            "out": hf["self_attn.o_proj.weight"].T.reshape(K, G, H, D),
            "post_norm": hf["post_attention_layernorm.weight"],
            "gate_up": np.stack([hf["mlp.gate_proj.weight"].T, hf["mlp.up_proj.weight"].T], axis=1),
            "down": hf["mlp.down_proj.weight"].T,
        }
        if cfg.qkv_bias:
            layer["qkv_bias"] = groups(i, "bias")
        if cfg.qk_norm:
            layer |= {f"{n}_norm": hf[f"self_attn.{n}_norm.weight"] for n in "qk"}
        params |= {f"layers.{i}.{name}": x for name, x in layer.items()}
    return params


def random_params(cfg: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Random Flax parameters of a model."""
    return fused_params(cfg, hf_tensors(cfg, seed))


def hf_config(cfg: ModelConfig) -> dict:
    """A config.json as its authors publish it (transformers 4 form)."""
    if cfg.qk_norm:
        return _qwen3_config(cfg)
    if not cfg.qkv_bias:
        return _llama_config(cfg)
    head_dim = {} if cfg.K * cfg.G * cfg.H == cfg.D else {"head_dim": cfg.H}
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": cfg.D,
        "initializer_range": 0.02,
        "intermediate_size": cfg.F,
        "max_position_embeddings": cfg.max_len,
        "max_window_layers": cfg.L,
        "model_type": "qwen2",
        "num_attention_heads": cfg.K * cfg.G,
        "num_hidden_layers": cfg.L,
        "num_key_value_heads": cfg.K,
        "rms_norm_eps": cfg.eps,
        "rope_theta": cfg.rope_theta,
        "sliding_window": 64,
        "tie_word_embeddings": cfg.tied,
        "torch_dtype": cfg.dtype,
        "transformers_version": "4.43.1",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": cfg.V,
        **head_dim,
    }


def _qwen3_config(cfg: ModelConfig) -> dict:
    other = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "sliding_window": None}
    other |= {"max_window_layers": cfg.L, "use_sliding_window": False}
    llama = _llama_config(cfg)
    return {k: x for k, x in llama.items() if k not in ("mlp_bias", "pretraining_tp")} | other


def _llama_config(cfg: ModelConfig) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": cfg.H,
        "hidden_act": "silu",
        "hidden_size": cfg.D,
        "initializer_range": 0.02,
        "intermediate_size": cfg.F,
        "max_position_embeddings": cfg.max_len,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": cfg.K * cfg.G,
        "num_hidden_layers": cfg.L,
        "num_key_value_heads": cfg.K,
        "pretraining_tp": 1,
        "rms_norm_eps": cfg.eps,
        "rope_scaling": None,
        "rope_theta": cfg.rope_theta,
        "tie_word_embeddings": cfg.tied,
        "torch_dtype": cfg.dtype,
        "use_cache": True,
        "vocab_size": cfg.V,
    }


def write_folder(folder, cfg: ModelConfig, tensors=None, *, files: int = 1) -> pathlib.Path:
    """A Hugging Face folder: one model.safetensors, or an index and several files.

    Whatever tensors it is given, right or wrong, are written as they are.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = hf_tensors(cfg) if tensors is None else tensors
    # safetensors 0.8.0 writes anything that is not C-contiguous wrongly.
    tensors = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    (folder / "config.json").write_text(json.dumps(hf_config(cfg)))
    if files == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for i in range(files):
        file = f"model-{i + 1:05d}-of-{files:05d}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[i::files]}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def edit_json(path, **changes) -> None:
    """Change keys of a JSON file; None drops the key."""
    content = json.loads(pathlib.Path(path).read_text()) | changes
    kept = {key: value for key, value in content.items() if value is not None}
    pathlib.Path(path).write_text(json.dumps(kept))
