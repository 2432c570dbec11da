"""weights.hf_dir and weights.export: a folder appears whole or not at all."""

import json
import weakref

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open

from fcjax import manifest
from fcjax.model import convert
from fcjax.model.reference import abstract_model, init_cache, set_params
from tests import models
from weights import export, hf_dir

CFG = models.UNTIED
D = CFG.D
SHARD = 20_000  # bytes: several tensors a shard, several shards
IDS = {"eos_token_id": 5}


def tensors():
    return models.hf_tensors(CFG).items()


def write(target, tensors, **kwargs):
    return hf_dir.write(target, CFG, tensors, files={"note.txt": "hi"}, token_ids=IDS, **kwargs)


@pytest.mark.parametrize("cfg", models.ALL.values(), ids=models.ALL)
def test_export_is_what_the_hand_made_fusion_undoes(cfg):
    want = models.hf_tensors(cfg)
    got = dict(export.hf_tensors(cfg, models.fused_params(cfg, want)))
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


@pytest.mark.parametrize("shard_bytes", [hf_dir.SHARD_BYTES, SHARD])
def test_transformers_computes_what_the_flax_model_does(tmp_path, shard_bytes):
    params = models.random_params(CFG)
    digest = write(tmp_path / "m", export.hf_tensors(CFG, params), shard_bytes=shard_bytes)
    assert manifest.verify(tmp_path / "m") == digest
    tokens = np.array([[3, 1, 4, 1, 5, 9, 2, 6]])
    model = set_params(abstract_model(CFG), {k: jnp.asarray(v) for k, v in params.items()})
    residuals, _ = model(tokens, init_cache(CFG, 1, 8), jnp.zeros(1, jnp.int32))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    assert type(theirs) is transformers.Qwen2ForCausalLM
    assert theirs.generation_config.eos_token_id == 5
    with torch.no_grad():
        want = theirs(torch.from_numpy(tokens)).logits.numpy()
    np.testing.assert_allclose(model.logits(residuals[-1]), want, rtol=1e-4, atol=1e-4)


def test_shards_and_their_index(tmp_path):
    want = dict(tensors())
    write(tmp_path / "m", tensors(), shard_bytes=SHARD)
    index = json.loads((tmp_path / "m" / hf_dir.INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert files == [
        f"model-{i:05d}-of-{len(files):05d}.safetensors" for i in range(1, len(files) + 1)
    ]
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in want.values())
    assert index["weight_map"].keys() == want.keys()
    for file in files:
        with safe_open(tmp_path / "m" / file, "numpy") as f:
            names = list(f.keys())
            assert all(index["weight_map"][name] == file for name in names)
            assert len(names) == 1 or sum(want[name].nbytes for name in names) <= SHARD
            for name in names:
                np.testing.assert_array_equal(f.get_tensor(name), want[name])


def test_no_more_than_one_shard_is_held(tmp_path):
    alive = weakref.WeakSet()  # of arrays; most_held counts their bytes
    most_held = 0

    class Array(np.ndarray):  # plain arrays have no hash, which a WeakSet needs
        __hash__ = object.__hash__

    def watched():
        nonlocal most_held
        for name, array in tensors():
            array = array.view(Array)
            alive.add(array)
            most_held = max(most_held, sum(a.nbytes for a in alive))
            yield name, array
            del array

    largest = max(4 * np.prod(shape) for shape in convert.hf_shapes(CFG).values())
    write(tmp_path / "m", watched(), shard_bytes=SHARD)
    assert most_held <= SHARD + largest < sum(array.nbytes for _, array in tensors()) / 2


def test_arrays_that_do_not_lie_in_order(tmp_path):
    want = dict(tensors())
    twisted = {name: np.asfortranarray(array) for name, array in want.items()}
    assert not twisted["lm_head.weight"].flags.c_contiguous
    write(tmp_path / "m", twisted.items())
    with safe_open(tmp_path / "m" / hf_dir.WEIGHTS, "numpy") as f:
        for name, array in want.items():
            np.testing.assert_array_equal(f.get_tensor(name), array)


def wrong(name, array):
    return {**dict(tensors()), name: array}.items()


@pytest.mark.parametrize(
    ("wrong_tensors", "message"),
    [
        (lambda: [*tensors()][:-1], "got none for .*model.layers.3.mlp.down_proj"),
        (lambda: [*tensors(), *tensors()], "once, got 'model"),
        (lambda: wrong("a.weight", np.zeros(3, np.float32)), "got 'a.weight'"),
        (lambda: wrong("model.norm.weight", np.zeros(3, np.float32)), r"float32\(46,\), got .*3"),
        (
            lambda: wrong("model.norm.weight", np.zeros(D, ml_dtypes.bfloat16)),
            r"float32\(46,\), got bfloat16",
        ),
        (lambda: wrong("model.norm.weight", np.full(D, np.nan, np.float32)), "finite"),
        (lambda: wrong("model.norm.weight", np.full(D, np.inf, np.float32)), "finite"),
    ],
)
def test_wrong_tensors_leave_nothing_behind(tmp_path, wrong_tensors, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "m", wrong_tensors(), shard_bytes=SHARD)
    assert not list(tmp_path.iterdir())


def test_an_existing_target_is_refused_and_kept(tmp_path):
    (tmp_path / "m").mkdir()
    with pytest.raises(ValueError, match="expected a new path, got an existing one"):
        write(tmp_path / "m", tensors())
    assert list(tmp_path.rglob("*")) == [tmp_path / "m"]


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    def interrupted():
        yield from [*tensors()][:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "m", interrupted())
    assert not list(tmp_path.iterdir())
