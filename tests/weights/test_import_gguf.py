"""weights.import_gguf against transformers, on small files of both architectures."""

import json
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file

from fcjax import manifest
from fcjax.model.config import ModelConfig
from tests.weights import gguf_files
from weights import gguf_import

CFG = gguf_files.CFG
TEXTS = [
    "To be, or not to be",
    "  two  spaces\n\n\ttab \r\n",
    "don't we'll I'M",
    "1234 56 7.89 x   12",
    "naïve cafe\u0301 你好 мир \U0001f642\U0001f469\u200d\U0001f467",
    "a<|im_start|>b<|im_end|> <think> <|endoftext|>",
    "def f(x):\n    return x**2\n",
]


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def imported(request, tmp_path_factory):
    """(architecture, the folder made from its file)"""
    folder = tmp_path_factory.mktemp(request.param)
    path = gguf_files.write(folder / "m.gguf", request.param)
    gguf_import.convert(path, folder / "m")
    return request.param, folder / "m"


def test_config_and_tensors_are_exact(imported):
    arch, folder = imported
    manifest.verify(folder)
    assert ModelConfig.from_hf(folder) == gguf_files.of(arch)
    got, want = load_file(folder / "model.safetensors"), gguf_files.tensors(arch=arch)
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == np.float32
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


def test_logits_are_those_of_the_architecture_in_transformers(imported):
    arch, folder = imported
    kind = {"qwen2": transformers.Qwen2ForCausalLM, "llama": transformers.LlamaForCausalLM}[arch]
    config = kind.config_class(
        hidden_size=CFG.D, intermediate_size=CFG.F, vocab_size=CFG.V, num_hidden_layers=CFG.L,
        num_attention_heads=CFG.K * CFG.G, num_key_value_heads=CFG.K, rms_norm_eps=CFG.eps,
        max_position_embeddings=CFG.max_len, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": CFG.rope_theta},
    )
    theirs = kind(config).eval()
    state = {n: torch.from_numpy(x) for n, x in gguf_files.tensors(arch=arch).items()}
    faults = theirs.load_state_dict(state, strict=False)
    assert faults.missing_keys == ["lm_head.weight"] and not faults.unexpected_keys  # tied
    ours = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert ours.dtype == torch.float32 and isinstance(ours, kind)
    tokens = torch.arange(12)[None] * 7 % CFG.V
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=1e-6, atol=1e-6)


def test_token_ids_and_chat_template(imported):
    _, folder = imported
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.pad_token == "<|endoftext|>"
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [CFG.V - 2, CFG.V - 4]
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == [298, 296]
    text = tokenizer.apply_chat_template([{"role": "user", "content": "be"}], tokenize=False)
    assert text == "<|im_start|>be<|im_end|>"
    assert len(tokenizer) == CFG.V


@pytest.mark.parametrize("pre", ["qwen2", "gpt-2"])
def test_tokenizer_is_the_one_that_transformers_makes_of_the_file(tmp_path, pre):
    gguf_files.write(tmp_path / "m.gguf", keys={"tokenizer.ggml.pre": pre})
    gguf_import.convert(tmp_path / "m.gguf", tmp_path / "m")
    ours = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "m")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path, gguf_file="m.gguf")
    for text in TEXTS:
        if pre == "qwen2":  # Qwen2's tokenizer.json has NFC, which GGUF does not tell of
            text = unicodedata.normalize("NFC", text)
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids) == text
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(
            ids, skip_special_tokens=True
        )


def test_untied_head(tmp_path):
    cfg = ModelConfig(**{**vars(CFG), "tied": False})
    gguf_files.write(tmp_path / "m.gguf", cfg=cfg)
    gguf_import.convert(tmp_path / "m.gguf", tmp_path / "m")
    assert ModelConfig.from_hf(tmp_path / "m") == cfg
    got = load_file(tmp_path / "m" / "model.safetensors")["lm_head.weight"]
    np.testing.assert_array_equal(got, gguf_files.tensors(cfg)["lm_head.weight"])


REFUSED = {
    "architecture": ({"arch": "gemma"}, r"architecture: expected qwen2 or llama, got 'gemma'"),
    "rope scaling": (
        {"keys": {"qwen2.rope.scaling.type": "yarn"}},
        r"qwen2.rope.scaling.type: expected 'none', got 'yarn' \(not implemented\)",
    ),
    "unknown key": (
        {"keys": {"qwen2.attention.sliding_window": 4096}},
        r"qwen2.attention.sliding_window: expected no such key",
    ),
    "partial rotation": (
        {"keys": {"qwen2.rope.dimension_count": 8}},
        r"qwen2.rope.dimension_count: expected 16, got 8",
    ),
    "missing key": ({"drop": ["qwen2.rope.freq_base"]}, r"freq_base: expected float, got nothing"),
    "wrong type": ({"keys": {"qwen2.block_count": "2"}}, r"block_count: expected int, got '2'"),
    "heads": ({"keys": {"qwen2.attention.head_count": 5}}, r"multiple of head_count_kv 2.*got 5"),
    "zero": ({"keys": {"qwen2.attention.head_count_kv": 0}}, r"expected a positive number, got 0"),
    "rope factors": (
        {"arch": "llama", "extra": ["rope_freqs.weight"]},
        r"rope_freqs.weight: expected no such tensor",
    ),
    "llama bias": (
        {"arch": "llama", "extra": ["blk.0.attn_q.bias"]},
        r"blk.0.attn_q.bias: expected no such tensor",
    ),
    "missing tensors": (
        {"drop": ["blk.1.ffn_up.weight", "output_norm.weight"]},
        r"blk.1.ffn_up.weight: expected a tensor, got nothing.*output_norm.weight: expected",
    ),
    "shape": (
        {"change": {"blk.0.attn_k.weight": np.zeros((31, 96), np.float32)}},
        r"blk.0.attn_k.weight: expected shape \(32, 96\), got \(31, 96\)",
    ),
    "not finite": (
        {"change": {"blk.0.attn_norm.weight": np.full(96, np.nan, np.float32)}},
        r"model.layers.0.input_layernorm.weight: expected finite",
    ),
    "tokenizer model": (
        {"keys": {"tokenizer.ggml.model": "llama"}},
        r"tokenizer.ggml.model: expected 'gpt2', got 'llama' \(not implemented\)",
    ),
    "pre-tokenizer": (
        {"keys": {"tokenizer.ggml.pre": "tekken"}},
        r"tokenizer.ggml.pre: expected 'gpt-2' or 'smollm' or 'qwen2', got 'tekken'",
    ),
    "bos": ({"keys": {"tokenizer.ggml.add_bos_token": True}}, r"add_bos_token: expected False"),
    "eos outside": (
        {"keys": {"tokenizer.ggml.eos_token_id": 300}},
        r"eos_token_id: expected an id below 300, got 300",
    ),
    "no eos": ({"drop": ["tokenizer.ggml.eos_token_id"]}, r"eos_token_id: expected int, got noth"),
    "vocabulary": (
        {"keys": {"tokenizer.ggml.token_type": [1, 1, 1]}},
        r"got 300 tokens with 300 spellings and 3 types",
    ),
    "merges": ({"keys": {"tokenizer.ggml.merges": ["a b", "a 你"]}}, r"got \('a', 'b'\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(tmp_path, case):
    kwargs, message = REFUSED[case]
    path = gguf_files.write(tmp_path / "m.gguf", **kwargs)
    with pytest.raises(ValueError, match=message):
        gguf_import.convert(path, tmp_path / "m")
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_files(tmp_path):
    whole = gguf_files.write(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "m.gguf"
    cuts = [0, 1, 4, 12, 24, 100, 2000, 8000, len(whole) // 2, len(whole) - 1]
    counts = b"\xff" * 16  # tensors and keys: 2 ** 64 - 1 of each
    damaged = [whole[:n] for n in cuts] + [b"x" + whole[1:], whole[:8] + counts + whole[24:]]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match="expected a whole GGUF file, got .*m.gguf"):
            gguf_import.convert(path, tmp_path / "m")
    path.unlink()
    with pytest.raises(ValueError, match="expected a whole GGUF file, got .*m.gguf"):
        gguf_import.convert(path, tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["whole.gguf"]


def run(*args, torch_free=False):
    block = "import sys; sys.modules['torch'] = None; " if torch_free else "import sys; "
    code = block + "import runpy; runpy.run_module('weights.import_gguf', run_name='__main__')"
    command = [sys.executable, "-W", "error", "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True)


def test_program_needs_no_torch(tmp_path):
    path = gguf_files.write(tmp_path / "m.gguf")
    done = run(f"--gguf={path}", f"--out={tmp_path / 'm'}", torch_free=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("m.gguf -> ")
    manifest.verify(tmp_path / "m")


def test_program_says_one_line_and_exits_2(tmp_path):
    done = run(f"--gguf={tmp_path / 'none.gguf'}", f"--out={tmp_path / 'm'}")
    assert done.returncode == 2
    assert done.stderr.startswith("error: gguf: expected a whole GGUF file, got FileNotFound")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_package_without_a_model():
    with pytest.raises(ValueError, match=r"expected one .gguf file, got 0 \(json, in "):
        gguf_import.find_in_package("json")
    with pytest.raises(ValueError, match=r"got 0 \(no_such.package, not installed\)"):
        gguf_import.find_in_package("no_such.package")
