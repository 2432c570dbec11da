"""Model folders: what loads is bit for bit what the files hold, and every bad folder is refused."""

import dataclasses
import json
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from fcjax import manifest
from fcjax.mesh import make_mesh
from fcjax.model import checkpoint
from fcjax.model.params import param_shapes
from fcjax.sharded import programs
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from tests import models

THREE = models.THREE
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def orbax_folder(source, folder):
    """A converted folder, as `weights.convert` writes it."""
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    checkpoint.save_orbax(checkpoint.open_folder(source), folder)
    manifest.write(folder)
    return folder


def whole(cfg, dtype):
    """Targets: every parameter unpadded on one device."""
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return {
        path: jax.ShapeDtypeStruct(shape, dtype, sharding=device)
        for path, shape in param_shapes(cfg).items()
    }


def equal(loaded, expected):
    """Bit-equal, with zeros wherever the loaded array is larger."""
    assert loaded.keys() == expected.keys()
    for path, x in expected.items():
        out = np.ascontiguousarray(loaded[path])
        ends = [(0, n - m) for n, m in zip(out.shape, x.shape, strict=True)]
        padded = np.ascontiguousarray(np.pad(x, ends))
        assert out.dtype == padded.dtype, path
        np.testing.assert_array_equal(out.view(np.uint8), padded.view(np.uint8), err_msg=path)


def refusal(call, *args) -> str:
    with pytest.raises(ValueError) as e:
        call(*args)
    assert "\n" not in str(e.value)
    return str(e.value)


# What is right


@DTYPES
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("cfg", models.ALL.values(), ids=models.ALL)
def test_load_whole(tmp_path, cfg, dtype, files):
    cfg = dataclasses.replace(cfg, dtype=dtype)
    source = checkpoint.open_folder(models.write_folder(tmp_path, cfg, files=files))
    assert source.cfg == cfg
    equal(source.load(whole(cfg, dtype)), models.random_params(cfg))


@DTYPES
def test_load_widens_without_loss(tmp_path, dtype):
    cfg = dataclasses.replace(THREE, dtype=dtype)
    source = checkpoint.open_folder(models.write_folder(tmp_path, cfg))
    expected = {p: x.astype(np.float32) for p, x in models.random_params(cfg).items()}
    equal(source.load(whole(cfg, "float32")), expected)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same model as a Hugging Face and as an Orbax folder, in bf16 as Qwen publishes it."""
    root = tmp_path_factory.mktemp("models")
    cfg = dataclasses.replace(THREE, dtype="bfloat16")
    hf = models.write_folder(root / "hf", cfg)
    return {"hf": hf, "orbax": orbax_folder(hf, root / "orbax"), "cfg": cfg}


@pytest.mark.parametrize("kind", ["hf", "orbax"])
@pytest.mark.parametrize("N", [2, 3, 4, 7])
def test_load_onto_nodes(folders, kind, N):
    """Each node's block of every parameter, padded with zeros, is where the plan puts it."""
    cfg = folders["cfg"]
    model = Layout(ShardedModel(Plan(cfg, N), Interval(1)), make_mesh(N), jnp.bfloat16)
    targets = model.params()
    loaded = checkpoint.open_folder(folders[kind]).load(targets)
    equal(loaded, models.random_params(cfg))
    for path, target in targets.items():
        assert loaded[path].shape == target.shape
        assert loaded[path].sharding.is_equivalent_to(target.sharding, len(target.shape))
        for shard in loaded[path].addressable_shards:
            assert shard.data.shape == target.sharding.shard_shape(target.shape)


@DTYPES
def test_orbax_round_trip(tmp_path, dtype):
    cfg = dataclasses.replace(models.UNTIED, dtype=dtype)
    hf = models.write_folder(tmp_path / "hf", cfg)
    folder = orbax_folder(hf, tmp_path / "orbax")
    source = checkpoint.open_folder(folder)
    assert isinstance(source, checkpoint.OrbaxFolder) and source.cfg == cfg
    targets = whole(cfg, dtype)
    loaded = source.load(targets)
    equal(loaded, checkpoint.open_folder(hf).load(targets))
    equal(loaded, models.random_params(cfg))


def test_orbax_widens_without_loss(folders):
    loaded = checkpoint.open_folder(folders["orbax"]).load(whole(folders["cfg"], "float32"))
    expected = models.random_params(folders["cfg"])
    equal(loaded, {p: x.astype(np.float32) for p, x in expected.items()})


def test_some_parameters_only(folders):
    cfg = folders["cfg"]
    path = "layers.1.qkv"
    for kind in "hf", "orbax":
        targets = {path: whole(cfg, "bfloat16")[path]}
        loaded = checkpoint.open_folder(folders[kind]).load(targets)
        equal(loaded, {path: models.random_params(cfg)[path]})


def test_a_node_reads_its_own_blocks_only(folders, monkeypatch):
    """What is read for the whole model is the model's size, however many nodes there are."""
    source = checkpoint.open_folder(folders["hf"])
    model = Layout(ShardedModel(Plan(folders["cfg"], 2), Interval(0)), make_mesh(2), jnp.bfloat16)
    read, original = [], source.read
    monkeypatch.setattr(
        source, "read", lambda path, index: read.append((path, index)) or original(path, index)
    )
    source.load(model.params())
    for path in programs.interval(model.model, 1).params:
        blocks = [index for p, index in read if p == path]
        sizes = [np.prod([s.stop - s.start for s in index]) for index in blocks]
        assert len(blocks) == 2, path
        assert sum(sizes) == np.prod(param_shapes(folders["cfg"])[path]), path
        assert max(sizes) < sum(sizes), path


def test_digest_is_that_of_the_files(folders):
    assert checkpoint.open_folder(folders["hf"]).digest == manifest.verify(folders["hf"])
    listed = json.loads((folders["orbax"] / "manifest.json").read_text())
    assert checkpoint.open_folder(folders["orbax"]).digest == manifest.digest(listed)


def test_bf16_in_a_fresh_interpreter(folders):
    """safetensors knows no bf16 unless ml_dtypes was imported before (safetensors#598)."""
    program = (
        "import sys; from fcjax.model.checkpoint import open_folder\n"
        "x = open_folder(sys.argv[1]).read('norm', (slice(0, 3),))\n"
        "assert 'torch' not in sys.modules\n"
        "print(x.dtype, x.astype('float32').tolist())"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(folders["hf"])]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    expected = models.random_params(folders["cfg"])["norm"][:3].astype(np.float32).tolist()
    assert out == f"bfloat16 {expected}\n"


# What is refused: Hugging Face folders


def changed(tmp_path, change, files=1, cfg=THREE):
    tensors = models.hf_tensors(cfg)
    change(tensors)
    return models.write_folder(tmp_path, cfg, tensors, files=files)


def test_no_folder(tmp_path):
    said = refusal(checkpoint.open_folder, tmp_path / "none")
    assert said == f"model: expected a folder, got nothing ({tmp_path / 'none'})"


def test_no_config(tmp_path):
    models.write_folder(tmp_path, THREE)
    (tmp_path / "config.json").unlink()
    assert str(tmp_path / "config.json") in refusal(checkpoint.open_folder, tmp_path)


def test_no_weights(tmp_path):
    models.write_folder(tmp_path, THREE)
    (tmp_path / "model.safetensors").unlink()
    said = refusal(checkpoint.open_folder, tmp_path)
    assert "expected a safetensors file" in said and str(tmp_path / "model.safetensors") in said


def test_no_such_shard(tmp_path):
    models.write_folder(tmp_path, THREE, files=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors" in refusal(checkpoint.open_folder, tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, -1])
def test_truncated(tmp_path, keep):
    path = models.write_folder(tmp_path, THREE) / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if keep == 0.5 else keep])
    said = refusal(checkpoint.open_folder, tmp_path)
    assert "expected a safetensors file" in said and str(path) in said


def test_corrupt_header(tmp_path):
    path = models.write_folder(tmp_path, THREE) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[20] ^= 0xFF
    path.write_bytes(data)
    assert str(path) in refusal(checkpoint.open_folder, tmp_path)


@pytest.mark.parametrize("name", ["hf", "orbax"])
def test_flipped_byte_in_the_data(tmp_path, folders, name):
    """Both formats load it without a word; the manifest does not."""
    folder = shutil.copytree(folders[name], tmp_path / "copy")
    manifest.write(folder)
    files = [p for p in folder.rglob("*") if p.is_file()]
    path = max(files, key=lambda p: p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    said = refusal(checkpoint.open_folder, folder)
    assert f"{path.relative_to(folder)}: expected sha256" in said and str(folder) in said


def test_missing_tensor(tmp_path):
    name = "model.layers.2.self_attn.k_proj.bias"
    folder = changed(tmp_path, lambda t: t.pop(name))
    said = refusal(checkpoint.open_folder, folder)
    assert said == f"weights: {name}: expected a tensor, got nothing ({folder})"


def test_extra_tensor(tmp_path):
    name = "model.layers.0.self_attn.o_proj.bias"
    folder = changed(tmp_path, lambda t: t.update({name: np.zeros(46, np.float32)}))
    said = refusal(checkpoint.open_folder, folder)
    assert said == f"weights: {name}: expected no such tensor ({folder})"


def test_head_in_a_tied_model(tmp_path):
    table = {"lm_head.weight": np.zeros((67, 46), np.float32)}
    said = refusal(checkpoint.open_folder, changed(tmp_path, lambda t: t.update(table)))
    assert "lm_head.weight: expected no such tensor" in said


def test_wrong_shape(tmp_path):
    """The transpose has as many numbers."""
    name = "model.layers.1.mlp.down_proj.weight"
    folder = changed(tmp_path, lambda t: t.update({name: t[name].T}))
    said = refusal(checkpoint.open_folder, folder)
    assert said == f"weights: {name}: expected shape (46, 58), got (58, 46) ({folder})"


@pytest.mark.parametrize("kind", ["float16", "float64", "int32"])
def test_wrong_dtype(tmp_path, kind):
    name = "model.layers.1.mlp.down_proj.weight"
    folder = changed(tmp_path, lambda t: t.update({name: t[name].astype(kind)}))
    said = refusal(checkpoint.open_folder, folder)
    shown = {"float16": "float16", "float64": "F64", "int32": "I32"}[kind]
    assert said == f"weights: {name}: expected float32, got {shown} ({folder})"


def test_config_of_another_type(tmp_path):
    models.write_folder(tmp_path, THREE)
    models.edit_json(tmp_path / "config.json", torch_dtype="bfloat16")
    said = refusal(checkpoint.open_folder, tmp_path)
    assert said.count("expected bfloat16, got float32") == len(models.hf_shapes(THREE))


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(num_hidden_layers=4), "model.layers.3.mlp.up_proj.weight: expected a tensor"),
        (dict(num_hidden_layers=2), "model.layers.2.mlp.up_proj.weight: expected no such tensor"),
        (dict(tie_word_embeddings=False), "lm_head.weight: expected a tensor, got nothing"),
        (dict(vocab_size=68), "embed_tokens.weight: expected shape (68, 46), got (67, 46)"),
        (dict(intermediate_size=59), "up_proj.weight: expected shape (59, 46), got (58, 46)"),
        (dict(num_key_value_heads=2), "k_proj.weight: expected shape (20, 46), got (30, 46)"),
        (dict(head_dim=12), "q_proj.weight: expected shape (72, 46), got (60, 46)"),
    ],
)
def test_config_that_contradicts_its_files(tmp_path, changes, message):
    models.write_folder(tmp_path, THREE)
    models.edit_json(tmp_path / "config.json", **changes)
    said = refusal(checkpoint.open_folder, tmp_path)
    assert message in said and str(tmp_path) in said


def test_all_faults_in_one_message(tmp_path):
    def change(t):
        del t["model.norm.weight"]
        t["extra"] = np.zeros(3, np.float32)
        t["model.layers.0.mlp.up_proj.weight"] = np.zeros((58, 45), np.float32)
        t["model.layers.0.input_layernorm.weight"] = np.zeros(46, np.float16)

    said = refusal(checkpoint.open_folder, changed(tmp_path, change))
    for fault in (
        "model.norm.weight: expected a tensor, got nothing",
        "extra: expected no such tensor",
        "up_proj.weight: expected shape (58, 46), got (58, 45)",
        "input_layernorm.weight: expected float32, got float16",
    ):
        assert fault in said


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("N", [None, 3])
def test_not_finite(tmp_path, value, N):
    def change(t):
        t["model.layers.1.self_attn.k_proj.bias"][-1] = value
        t["model.layers.2.mlp.gate_proj.weight"][0, 0] = value

    source = checkpoint.open_folder(changed(tmp_path, change))
    targets = whole(THREE, "float32")
    if N:
        targets = Layout(ShardedModel(Plan(THREE, N), Interval(0)), make_mesh(N)).params()
    said = refusal(source.load, targets)
    for path in "layers.1.qkv_bias", "layers.2.gate_up":
        assert f"{path}: expected finite numbers, got inf or nan" in said
    assert said.count("expected") == 2 and str(tmp_path) in said


def test_not_finite_is_not_converted(tmp_path):
    def change(t):
        t["model.norm.weight"][3] = np.nan

    source = checkpoint.open_folder(changed(tmp_path / "hf", change))
    (tmp_path / "out").mkdir()
    said = refusal(checkpoint.save_orbax, source, tmp_path / "out")
    assert "norm: expected finite numbers, got inf or nan" in said
    assert not list((tmp_path / "out").iterdir())


def lie(folder, change):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))
    return refusal(checkpoint.open_folder, folder)


def test_index_with_the_wrong_file(tmp_path):
    folder, name = models.write_folder(tmp_path, THREE, files=3), "model.norm.weight"
    right, wrong = (f"model-0000{i}-of-00003.safetensors" for i in (2, 3))
    said = lie(folder, lambda listed: listed.update({name: wrong}))
    assert f"{name}: expected in {wrong}, got in {right}" in said


def test_index_with_a_tensor_that_no_file_has(tmp_path):
    folder = models.write_folder(tmp_path, THREE, files=3)
    said = lie(folder, lambda listed: listed.update(more="model-00001-of-00003.safetensors"))
    assert "more: expected a tensor, got nothing" in said


def test_index_without_a_tensor(tmp_path):
    folder = models.write_folder(tmp_path, THREE, files=3)
    said = lie(folder, lambda listed: listed.pop("model.norm.weight"))
    assert "model.norm.weight: expected in None, got in model-00002-of-00003.safetensors" in said


def test_index_beside_a_file_that_it_does_not_name(tmp_path):
    folder = models.write_folder(tmp_path, THREE, files=3)
    models.write_folder(tmp_path, THREE)
    said = refusal(checkpoint.open_folder, folder)
    assert "expected model.safetensors or model.safetensors.index.json, got both" in said


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": []}'])
def test_unreadable_index(tmp_path, content):
    folder = models.write_folder(tmp_path, THREE, files=2)
    path = folder / "model.safetensors.index.json"
    path.write_text(content)
    said = refusal(checkpoint.open_folder, folder)
    assert "expected an index with weight_map" in said and str(path) in said


def test_manifest_lists_a_missing_file(tmp_path):
    folder = models.write_folder(tmp_path, THREE)
    (folder / "tokenizer.json").write_text("{}")
    manifest.write(folder)
    (folder / "tokenizer.json").unlink()
    said = refusal(checkpoint.open_folder, folder)
    assert "tokenizer.json: expected in the folder, got nothing" in said


# What is refused: Orbax folders


@pytest.fixture
def orbax(tmp_path, folders):
    return shutil.copytree(folders["orbax"], tmp_path / "orbax")


def test_orbax_without_a_manifest(orbax):
    (orbax / "manifest.json").unlink()
    said = refusal(checkpoint.open_folder, orbax)
    assert said == f"manifest: expected manifest.json, got nothing ({orbax})"


def test_orbax_without_a_file(orbax):
    path = max((orbax / "params").rglob("*"), key=lambda p: p.stat().st_size)
    path.unlink()
    said = refusal(checkpoint.open_folder, orbax)
    assert f"{path.relative_to(orbax)}: expected in the folder, got nothing" in said


def test_orbax_unreadable(orbax):
    """A folder params/ that is no checkpoint, under a manifest that says so."""
    shutil.rmtree(orbax / "params")
    (orbax / "params").mkdir()
    (orbax / "params" / "file").write_text("")
    manifest.write(orbax)
    said = refusal(checkpoint.open_folder, orbax)
    assert "expected an Orbax checkpoint" in said and str(orbax / "params") in said


def rewrite(orbax, cfg, change):
    """Save other parameters under the same config, with a manifest that agrees."""
    params = models.random_params(cfg)
    change(params)
    shutil.rmtree(orbax / "params")
    ocp.save(orbax / "params", params)
    manifest.write(orbax)
    return refusal(checkpoint.open_folder, orbax)


def test_orbax_of_another_type(orbax, folders):
    """Orbax would cast it in silence."""

    def change(params):
        params["layers.1.down"] = params["layers.1.down"].astype(np.float32)

    said = rewrite(orbax, folders["cfg"], change)
    assert said == f"weights: layers.1.down: expected bfloat16, got float32 ({orbax})"


def test_orbax_with_wrong_parameters(orbax, folders):
    def change(params):
        del params["layers.2.out"]
        params["head"] = params["embed"]
        params["norm"] = params["norm"][:-1]

    said = rewrite(orbax, folders["cfg"], change)
    assert "layers.2.out: expected a parameter, got nothing" in said
    assert "head: expected no such parameter" in said
    assert "norm: expected shape (46,), got (45,)" in said


def test_orbax_not_finite(orbax, folders):
    params = models.random_params(folders["cfg"])
    params["norm"][5] = np.inf
    shutil.rmtree(orbax / "params")
    ocp.save(orbax / "params", params)
    manifest.write(orbax)
    said = refusal(checkpoint.open_folder(orbax).load, whole(folders["cfg"], "bfloat16"))
    assert said == f"weights: norm: expected finite numbers, got inf or nan ({orbax})"


def test_orbax_config_that_contradicts(orbax):
    models.edit_json(orbax / "config.json", intermediate_size=59)
    manifest.write(orbax)
    said = refusal(checkpoint.open_folder, orbax)
    assert "layers.0.gate_up: expected shape (46, 2, 59), got (46, 2, 58)" in said
