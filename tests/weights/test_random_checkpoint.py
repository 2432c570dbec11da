"""weights.random_checkpoint: reproducible numbers with the scales of a trained model."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from fcjax import manifest
from fcjax.model import convert
from fcjax.model.config import QWEN25, ModelConfig
from fcjax.model.reference import abstract_model, init_cache, set_params
from tests import models
from tests.weights import gguf_files
from weights import hf_dir, random_model, tiny_tokenizer

CFG = dataclasses.replace(QWEN25["0.5b"], L=4, D=128, K=2, G=2, H=32, F=512, V=2048)
UNTIED = dataclasses.replace(CFG, tied=False)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A folder with a tokenizer of 300 ids."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = tiny_tokenizer.train(gguf_files.TEXT, 300)
    for name, content in tiny_tokenizer.files(tokenizer, 64).items():
        (folder / name).write_text(content)
    (folder / "generation_config.json").write_text('{"eos_token_id": [299, 7], "top_p": 0.5}')
    return folder


def test_a_whole_folder(tmp_path, tokenizer):
    out = tmp_path / "a" / "m"  # the parent is made
    digest = random_model.make(CFG, out, 0, tokenizer, shard_bytes=2**20)
    assert manifest.verify(out) == digest
    assert ModelConfig.from_hf(out) == CFG
    assert json.loads((out / "generation_config.json").read_text()) == {"eos_token_id": [299, 7]}
    assert (out / "tokenizer.json").read_bytes() == (tokenizer / "tokenizer.json").read_bytes()
    weight_map = json.loads((out / hf_dir.INDEX).read_text())["weight_map"]
    assert weight_map.keys() == convert.hf_shapes(CFG).keys()
    want = dict(random_model.tensors(CFG, 0))
    for name, file in weight_map.items():
        with safe_open(out / file, "numpy") as f:
            np.testing.assert_array_equal(f.get_tensor(name), want[name])


def test_numbers_depend_on_seed_and_name_only():
    shallow = dataclasses.replace(CFG, L=2)
    first, again = (dict(random_model.tensors(shallow, 5)) for _ in range(2))
    other = dict(random_model.tensors(shallow, 6))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        assert (first[name] != other[name]).mean() > 0.5
    name = "model.layers.0.mlp.up_proj.weight"
    alone = random_model.tensor(CFG, 5, name, convert.hf_shapes(CFG)[name])
    np.testing.assert_array_equal(alone, first[name])
    gate, up = (first[f"model.layers.0.mlp.{n}_proj.weight"] for n in ("gate", "up"))
    assert abs(np.corrcoef(gate.astype(np.float32).flat, up.astype(np.float32).flat)[0, 1]) < 0.02


def test_numbers_stay_the_same_for_ever():
    x = random_model.tensor(CFG, 0, "model.norm.weight", (CFG.D,))
    assert [float(v) for v in x[:4]] == [1.03125, 0.98828125, 0.9140625, 0.921875]


@pytest.mark.parametrize("size", QWEN25)
def test_every_tensor_of_every_size_has_a_distribution(size):
    for name in convert.hf_shapes(QWEN25[size]):
        mean, deviation = random_model.distribution(QWEN25[size], name)
        assert deviation > 0
        assert mean == (1 if "norm" in name else 0)


@pytest.mark.parametrize("cfg", [CFG, UNTIED], ids=["tied", "untied"])
def test_activations_stay_of_order_one(cfg):
    tensors = {n: x.astype(np.float32) for n, x in random_model.tensors(cfg, 0)}
    params = {n: jnp.asarray(x) for n, x in models.fused_params(cfg, tensors).items()}
    model = set_params(abstract_model(cfg), params)
    tokens = np.random.default_rng(0).integers(0, cfg.V, (1, 32))
    residuals, _ = jax.jit(lambda model, *args: model(*args))(
        model, tokens, init_cache(cfg, 1, 32), jnp.zeros(1, jnp.int32)
    )
    sizes = [float(jnp.sqrt(jnp.mean(x * x))) for x in residuals]
    assert 0.1 < sizes[0] < 1 and 0.3 < sizes[-1] < 3 and max(sizes) < 3
    logits = np.asarray(model.logits(residuals[-1]))[0]
    assert 2 < logits.std() < 6
    assert len(set(logits.argmax(axis=-1).tolist())) > 16  # it does not say one thing to everything


def test_bad_tokenizers(tmp_path, tokenizer):
    small = dataclasses.replace(CFG, V=299)
    with pytest.raises(ValueError, match="tokenizer: expected at most 299 ids, got 300"):
        random_model.make(small, tmp_path / "m", 0, tokenizer)
    with pytest.raises(ValueError, match="tokenizer: expected a model folder with one, got "):
        random_model.make(CFG, tmp_path / "m", 0, tmp_path)
    with pytest.raises(ValueError, match="expected a new path"):
        random_model.make(CFG, tmp_path, 0, tokenizer)
    assert not list(tmp_path.iterdir())
