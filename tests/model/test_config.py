"""config.json is read strictly, and the named sizes are the published ones."""

import dataclasses
import json
import math

import pytest

from fcjax.model import convert
from fcjax.model.config import QWEN25, ModelConfig
from fcjax.model.params import param_shapes
from tests import models


@pytest.fixture
def read(tmp_path):
    """Read the config of THREE with some keys changed; None drops a key."""

    def read(**changes):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(models.hf_config(models.THREE)))
        models.edit_json(path, **changes)
        return ModelConfig.from_hf(tmp_path)

    return read


def refusal(call, *args, **kwargs) -> str:
    with pytest.raises(ValueError) as e:
        call(*args, **kwargs)
    assert "\n" not in str(e.value)
    return str(e.value)


@pytest.mark.parametrize("cfg", models.ALL.values(), ids=models.ALL)
def test_reads_what_qwen_publishes(tmp_path, cfg):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(models.hf_config(cfg)))
    assert ModelConfig.from_hf(path) == cfg
    assert ModelConfig.from_hf(tmp_path) == cfg


def test_reads_the_published_file_of_qwen25_15b(tmp_path):
    # Qwen/Qwen2.5-1.5B-Instruct, config.json as on the hub.
    (tmp_path / "config.json").write_text("""{
      "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
      "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 1536,
      "initializer_range": 0.02, "intermediate_size": 8960, "max_position_embeddings": 32768,
      "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 12,
      "num_hidden_layers": 28, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
      "torch_dtype": "bfloat16", "transformers_version": "4.43.1", "use_cache": true,
      "use_sliding_window": false, "vocab_size": 151936}""")
    assert ModelConfig.from_hf(tmp_path) == QWEN25["1.5b"]


@pytest.mark.parametrize("cfg", [*QWEN25.values(), *models.ALL.values()])
def test_to_hf_is_read_back(tmp_path, cfg):
    (tmp_path / "config.json").write_text(json.dumps(cfg.to_hf()))
    assert ModelConfig.from_hf(tmp_path) == cfg


def test_size_of_letters():
    cfg = models.THREE
    assert {d: cfg.size(d) for d in "DKGHFVC2"} == {
        "D": 46, "K": 3, "G": 2, "H": 10, "F": 58, "V": 67, "C": 4, "2": 2,
    }


def test_transformers_5_form(read):
    cfg = read(
        rope_theta=None, rope_parameters={"rope_theta": 5e5, "rope_type": "default"},
        torch_dtype=None, dtype="bfloat16", sliding_window=None,
        layer_types=["full_attention"] * 3,
    )
    assert cfg == dataclasses.replace(models.THREE, rope_theta=5e5, dtype="bfloat16")


def test_an_integer_is_a_fine_float(read):
    assert read(rope_theta=1000000).rope_theta == 1e6
    assert type(read(rope_theta=1000000).rope_theta) is float


REFUSED = {
    # changes of config.json, and what the message must say: the key and both values
    "yarn": (
        dict(rope_scaling={"type": "yarn", "factor": 4.0}),
        "rope_scaling: expected rope_type 'default', got 'yarn' with ['factor']",
    ),
    "yarn in rope_parameters": (
        dict(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}),
        "rope_parameters: expected rope_type 'default', got 'yarn' with ['factor']",
    ),
    "factor without a type": (
        dict(rope_parameters={"rope_theta": 1e4, "factor": 4.0}),
        "rope_parameters: expected rope_type 'default', got 'default' with ['factor']",
    ),
    "rope_parameters not a table": (dict(rope_parameters=[1]), "rope_parameters: expected"),
    "rope_scaling not a table": (dict(rope_scaling="yarn"), "rope_scaling: expected"),
    "no rope base": (dict(rope_theta=None), "rope_theta: expected float, got nothing"),
    "two rope bases": (
        dict(rope_parameters={"rope_theta": 1e6}),
        "rope_theta: expected one value, got 10000.0 and rope_parameters.rope_theta 1000000.0",
    ),
    "two rope bases, one in rope_scaling": (
        dict(rope_scaling={"rope_type": "default", "rope_theta": 1e6}),
        "rope_theta: expected one value, got 10000.0 and rope_scaling.rope_theta 1000000.0",
    ),
    "sliding window": (
        dict(use_sliding_window=True),
        "use_sliding_window: expected False, got True",
    ),
    "sliding layers": (
        dict(layer_types=["full_attention", "sliding_attention", "full_attention"]),
        "layer_types: expected 'full_attention' for each of 3 layers, got ['full_attention', 'sl",
    ),
    "layer_types too short": (dict(layer_types=["full_attention"] * 2), "each of 3 layers, got"),
    "layer_types not a list": (dict(layer_types=3), "layer_types: expected"),
    "unknown key": (dict(qk_norm=True), "unknown keys ['qk_norm']"),
    "quantized": (dict(quantization_config={"bits": 4}), "unknown keys ['quantization_config']"),
    "gemma": (dict(model_type="gemma"), "model_type: expected one of 'qwen2', 'llama'"),
    "no model type": (dict(model_type=None), "'qwen3', got nothing"),
    "gelu": (dict(hidden_act="gelu"), "hidden_act: expected 'silu', got 'gelu'"),
    "no attention bias": (
        dict(attention_bias=False), "attention_bias: expected True, got False"
    ),
    "mrope": (dict(use_mrope=True), "use_mrope: expected False, got True"),
    "missing": (dict(num_key_value_heads=None), "num_key_value_heads: expected int, got nothing"),
    "missing tie": (
        dict(tie_word_embeddings=None), "tie_word_embeddings: expected bool, got nothing"
    ),
    "string": (dict(hidden_size="46"), "hidden_size: expected a positive int, got '46'"),
    "float": (dict(hidden_size=46.0), "hidden_size: expected a positive int, got 46.0"),
    "bool": (dict(num_hidden_layers=True), "num_hidden_layers: expected a positive int, got True"),
    "int for bool": (dict(tie_word_embeddings=1), "tie_word_embeddings: expected bool, got 1"),
    "zero": (dict(vocab_size=0), "vocab_size: expected a positive int, got 0"),
    "negative": (dict(intermediate_size=-1), "intermediate_size: expected a positive int, got -1"),
    "huge": (dict(rope_theta=10**400), "rope_theta: expected a positive float, got 1000"),
    "infinite": (dict(rope_theta=math.inf), "rope_theta: expected a positive float, got inf"),
    "nan": (dict(rms_norm_eps=math.nan), "rms_norm_eps: expected a positive float, got nan"),
    "no type": (
        dict(torch_dtype=None),
        "torch_dtype: expected one of float32, bfloat16, float16, got None",
    ),
    "unknown type": (
        dict(torch_dtype="float64"),
        "torch_dtype: expected one of float32, bfloat16, float16, got 'float64'",
    ),
    "two types": (
        dict(dtype="bfloat16"),
        "torch_dtype: expected one of float32, bfloat16, float16, got 'bfloat16' and 'float32'",
    ),
    "heads": (
        dict(num_attention_heads=7),
        "num_attention_heads: expected a multiple of num_key_value_heads 3, got 7",
    ),
    "hidden over heads": (
        dict(head_dim=None),
        "hidden_size: expected a multiple of num_attention_heads 6, got 46",
    ),
    "odd head_dim": (dict(head_dim=9), "head_dim: expected an even int above 0, got 9"),
    "odd head_dim, derived": (
        dict(head_dim=None, hidden_size=54), "head_dim: expected an even int above 0, got 9"
    ),
    "head_dim string": (dict(head_dim="10"), "head_dim: expected an even int above 0, got '10'"),
    "head_dim zero": (dict(head_dim=0), "head_dim: expected an even int above 0, got 0"),
    "head_dim negative": (dict(head_dim=-2), "head_dim: expected an even int above 0, got -2"),
    "head_dim bool": (dict(head_dim=False), "head_dim: expected an even int above 0, got False"),
}


@pytest.mark.parametrize("changes, message", REFUSED.values(), ids=REFUSED)
def test_refuses_by_name(read, tmp_path, changes, message):
    said = refusal(read, **changes)
    assert said.startswith("config: ") and message in said
    assert str(tmp_path / "config.json") in said


def test_all_faults_in_one_message(read):
    said = refusal(
        read, model_type="gemma", hidden_size="46", vocab_size=None, qk_norm=True,
        rope_scaling={"type": "yarn"}, use_sliding_window=True,
    )
    for key in ("model_type", "hidden_size", "vocab_size", "qk_norm", "rope_scaling",
                "use_sliding_window"):
        assert key in said


@pytest.mark.parametrize(
    "content, message",
    [(b"{", "config.json: expected JSON"), (b"\xff\xfe", "config.json: expected JSON"),
     (b"[1]", "expected a JSON object, got list")],
)
def test_refuses_other_content(tmp_path, content, message):
    (tmp_path / "config.json").write_bytes(content)
    said = refusal(ModelConfig.from_hf, tmp_path)
    assert message in said and str(tmp_path / "config.json") in said


def test_refuses_a_missing_file(tmp_path):
    assert str(tmp_path / "config.json") in refusal(ModelConfig.from_hf, tmp_path)


@pytest.mark.parametrize("name", models.ALL)
def test_a_written_config_reads_as_the_same(tmp_path, name):
    cfg = models.ALL[name]
    (tmp_path / "config.json").write_text(json.dumps(cfg.to_hf()))
    assert ModelConfig.from_hf(tmp_path) == cfg


# Parameters as Hugging Face counts them (the `total` of the hub's safetensors metadata).
PARAMETERS = {
    "0.5b": 494_032_768, "1.5b": 1_543_714_304, "3b": 3_085_938_688, "7b": 7_615_616_512,
    "14b": 14_770_033_664, "32b": 32_763_876_352, "72b": 72_706_203_648,
}


@pytest.mark.parametrize("name", QWEN25)
def test_named_sizes(name):
    cfg = QWEN25[name]
    flax, hf = param_shapes(cfg), convert.hf_shapes(cfg)
    assert sum(map(math.prod, flax.values())) == PARAMETERS[name]
    assert sum(map(math.prod, hf.values())) == PARAMETERS[name]
    assert cfg.D == cfg.K * cfg.G * cfg.H
    assert cfg.H == (64 if name == "0.5b" else 128)
    assert cfg.tied == (name in ("0.5b", "1.5b", "3b"))
    assert (cfg.eps, cfg.rope_theta) == (1e-6, 1e6)


def test_named_tensor_counts():
    assert len(convert.hf_shapes(QWEN25["0.5b"])) == 290
    assert len(convert.hf_shapes(QWEN25["7b"])) == 28 * 12 + 3
    biases = [n for n in convert.hf_shapes(QWEN25["0.5b"]) if n.endswith(".bias")]
    assert len(biases) == 72
