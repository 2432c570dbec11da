"""weights.train_tiny on a few lines, and the model that it made: weights/tiny."""

import dataclasses
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import weights
from fcjax import manifest
from fcjax.model.config import ModelConfig
from tests import models
from tests.weights import gguf_files
from weights import tiny_model, tiny_tokenizer, training

TINY = pathlib.Path(weights.__file__).parent / "tiny"
SMALL = dataclasses.replace(tiny_model.TINY, L=1, D=24, H=6, F=20, V=280)
QUICK = tiny_model.Schedule(
    steps=6, batch=2, seed=0, length=16, eval_every=3, sample_tokens=5, prompt="To"
)
HAMLET = """To be, or not to be, that is the question:
Whether 'tis nobler in the mind to suffer
The slings and arrows of outrageous fortune,
Or to take arms against a sea of troubles,
And by opposing end them."""


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(gguf_files.TEXT * 30)
    return path


def test_a_training_run_is_reproducible(text_file, tmp_path):
    loss = tiny_model.build(text_file, tmp_path / "a", QUICK, SMALL)
    tiny_model.build(text_file, tmp_path / "b", QUICK, SMALL)
    digest = manifest.verify(tmp_path / "a")
    assert digest == manifest.verify(tmp_path / "b")
    assert ModelConfig.from_hf(tmp_path / "a") == SMALL
    record = json.loads((tmp_path / "a" / "training.json").read_text())
    assert record["settings"] == dataclasses.asdict(QUICK)
    assert [row["step"] for row in record["curve"]] == [3, 6]
    assert record["curve"][1]["val_loss"] < record["curve"][0]["val_loss"]
    assert loss == record["val_loss_bf16"]
    assert abs(loss - record["curve"][1]["val_loss"]) < 0.05
    assert f"{loss:.4f} nats a token" in (tmp_path / "a" / "README.md").read_text()


def test_bad_texts_leave_nothing_behind(tmp_path):
    bad = tmp_path / "bad.txt"
    for content, message in [
        (b"\xff\xfe", "text: expected a readable UTF-8 file, got .*bad.txt"),
        (b"", "expected text with enough words for 280 ids, got 257"),
        (gguf_files.TEXT.encode(), "expected 257 held-out tokens, got"),
    ]:
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            tiny_model.build(bad, tmp_path / "m", QUICK, SMALL)
    bad.unlink()
    with pytest.raises(ValueError, match="text: expected a readable UTF-8 file, got .*bad.txt"):
        tiny_model.build(bad, tmp_path / "m", QUICK, SMALL)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="expected a new path"):
        tiny_model.build(bad, tmp_path, QUICK, SMALL)


@pytest.fixture(scope="module")
def tiny():
    """(config, Flax parameters in f32) of weights/tiny."""
    cfg = ModelConfig.from_hf(TINY)
    tensors = load_file(TINY / "model.safetensors")
    params = models.fused_params(cfg, {n: x.astype(np.float32) for n, x in tensors.items()})
    return cfg, {n: jnp.asarray(x) for n, x in params.items()}


def test_tiny_is_small_and_exercises_everything(tiny):
    cfg, params = tiny
    manifest.verify(TINY)
    assert sum(path.stat().st_size for path in TINY.iterdir()) <= 8e6
    assert cfg == tiny_model.TINY
    assert cfg.L >= 6 and cfg.K == 2 and cfg.G > 1 and cfg.tied
    for layer in range(cfg.L):
        bias_KCH = np.asarray(params[f"layers.{layer}.qkv_bias"])
        assert (np.sqrt(np.mean(bias_KCH**2, axis=-1)) > 0.05).all()
        norm_D = np.asarray(params[f"layers.{layer}.input_norm"])
        assert norm_D.std() > 0.01


def test_tiny_has_learnt_english(tiny):
    cfg, params = tiny
    ids = np.array(Tokenizer.from_file(str(TINY / "tokenizer.json")).encode(HAMLET).ids)
    assert training.loss(cfg, params, ids[None, :-1], ids[None, 1:]) < 4.8
    # The same words out of order are no English.
    shuffled = np.random.default_rng(0).permutation(ids)
    assert training.loss(cfg, params, shuffled[None, :-1], shuffled[None, 1:]) > 6


def test_tiny_speaks_words(tiny):
    cfg, params = tiny
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    prompt = tokenizer.encode("KING RICHARD II:\n").ids
    out = training.sample(cfg, params, prompt, count=60, temperature=0.6, seed=1)
    words = set(tokenizer.decode(out).lower().replace(",", " ").split())
    assert len(words & {"the", "and", "i", "to", "of", "my", "you", "that", "is", "thou"}) >= 3


@pytest.fixture(scope="module")
def tokenizers():
    return [
        transformers.AutoTokenizer.from_pretrained(TINY, local_files_only=True),
        transformers.PreTrainedTokenizerFast.from_pretrained(TINY),
    ]


def test_tokenizer_files(tokenizers):
    for tokenizer in tokenizers:
        assert len(tokenizer) == 2048
        assert tokenizer.eos_token_id == tokenizer.pad_token_id == 2047
        ids = tokenizer.encode("Now<|endoftext|>")
        assert ids[-1] == 2047
        assert tokenizer.decode(ids, skip_special_tokens=True) == "Now"


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_any_text_comes_back(tokenizers, text):
    text = tokenizers[0].backend_tokenizer.normalizer.normalize_str(text)
    first, second = (tokenizer.encode(text) for tokenizer in tokenizers)
    assert first == second
    if tiny_tokenizer.EOS not in text:
        assert tokenizers[0].decode(first) == text


def test_tokenizer_refuses_a_text_with_too_few_words():
    with pytest.raises(ValueError, match="enough words for 2048 ids, got 3"):
        tiny_tokenizer.train(gguf_files.TEXT, 2048)
