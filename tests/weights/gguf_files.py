"""Small GGUF files for the tests, written by gguf's own writer."""

import dataclasses
import json

import gguf
import numpy as np

from fcjax.model.config import ModelConfig
from tests import models
from weights import tiny_tokenizer

TEXT = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 3
CHAT = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
MARKED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"]  # the last is no special token

# Rows are multiples of 32, the block of Q8_0; 3 query heads a KV group.
CFG = ModelConfig(
    L=2, D=96, K=2, G=3, H=16, F=64, V=300, tied=True,
    eps=1e-5, rope_theta=1e5, max_len=256, dtype="float32",
)
QUANTIZED = gguf.GGMLQuantizationType.Q8_0


def of(arch: str, cfg: ModelConfig = CFG) -> ModelConfig:
    """The sizes, in this architecture."""
    return dataclasses.replace(cfg, qkv_bias=arch == "qwen2")


def llama_order(w, heads: int):
    """What llama.cpp's `LlamaModel.permute` does to q and k when it writes a file."""
    return (
        w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
    )


def tensors(cfg: ModelConfig = CFG, arch: str = "qwen2") -> dict[str, np.ndarray]:
    """Hugging Face tensors whose matrices are exactly representable in Q8_0."""
    found = {}
    for name, x in models.hf_tensors(of(arch, cfg)).items():
        if x.ndim == 2:
            x = gguf.dequantize(gguf.quantize(x, QUANTIZED), QUANTIZED)
        found[name] = x
    return found


def vocabulary(cfg: ModelConfig = CFG):
    """(tokens, merges, token types) of a byte-level BPE of V ids."""
    learnt = json.loads(tiny_tokenizer.train(TEXT, cfg.V - len(MARKED) + 1).to_str())["model"]
    tokens = sorted(learnt["vocab"], key=learnt["vocab"].get)
    types = [gguf.TokenType.NORMAL] * len(tokens)
    types += [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.USER_DEFINED]
    return tokens + MARKED, [" ".join(m) for m in learnt["merges"]], types


def write(path, arch="qwen2", cfg: ModelConfig = CFG, *, change=None, extra=(), drop=(), keys=None):
    """Write a GGUF file.

    Args:
      change: tensors by GGUF name that stand in place of the right ones.
      extra: names of further tensors.
      drop: names of tensors and keys to leave out.
      keys: metadata to add or to put in place of the right one.
    """
    tokens, merges, types = vocabulary(cfg)
    meta = {
        f"{arch}.block_count": cfg.L,
        f"{arch}.context_length": cfg.max_len,
        f"{arch}.embedding_length": cfg.D,
        f"{arch}.feed_forward_length": cfg.F,
        f"{arch}.attention.head_count": cfg.K * cfg.G,
        f"{arch}.attention.head_count_kv": cfg.K,
        f"{arch}.attention.layer_norm_rms_epsilon": cfg.eps,
        f"{arch}.rope.freq_base": cfg.rope_theta,
        "general.license": "apache-2.0",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(t) for t in types],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": cfg.V - 2,
        "tokenizer.ggml.eot_token_id": cfg.V - 4,
        "tokenizer.ggml.padding_token_id": cfg.V - 4,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT,
    } | (keys or {})
    writer = gguf.GGUFWriter(path, arch)
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in meta.items():
        if key not in drop:
            add[type(value)](key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, cfg.L)
    for name, x in tensors(cfg, arch).items():
        target = names.get_name(name, (".weight", ".bias"))
        if target in drop:
            continue
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            x = llama_order(x, x.shape[0] // cfg.H)
        x = (change or {}).get(target, x)
        if x.ndim == 2 and x.shape[1] % 32 == 0:
            writer.add_tensor(target, gguf.quantize(x, QUANTIZED), raw_dtype=QUANTIZED)
        else:
            writer.add_tensor(target, x)
    for name in extra:
        writer.add_tensor(name, np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
