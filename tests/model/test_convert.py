"""The table between Hugging Face tensors and Flax parameters, checked both ways and by hand."""

import collections
import itertools

import numpy as np
import pytest

from fcjax.model import convert
from fcjax.model.config import QWEN25
from fcjax.model.params import leaf, param_dims, param_shapes
from fcjax.sharded.operators import INTERVAL_CUTS, TENSOR_PARALLEL_CUTS
from fcjax.sharded.ownership import Plan
from tests import models

EVERY_MODEL = pytest.mark.parametrize("cfg", models.ALL.values(), ids=models.ALL)


def reader(tensors, seen=None):
    def read(name, slices):
        if seen is not None:
            seen[name] += 1
        return tensors[name][slices]

    return read


def whole(cfg, path, read):
    shape = param_shapes(cfg)[path]
    return convert.read_block(cfg, path, tuple(slice(0, n) for n in shape), read)


@EVERY_MODEL
def test_names_and_shapes(cfg):
    assert convert.hf_shapes(cfg) == models.hf_shapes(cfg)


@pytest.mark.parametrize("cfg", QWEN25.values(), ids=QWEN25)
def test_names_and_shapes_of_named_sizes(cfg):
    assert convert.hf_shapes(cfg) == models.hf_shapes(cfg)


@EVERY_MODEL
def test_each_tensor_is_used_once_and_each_parameter_filled(cfg):
    seen = collections.Counter()
    read = reader(models.hf_tensors(cfg), seen)
    for path, shape in param_shapes(cfg).items():
        assert whole(cfg, path, read).shape == shape
    assert seen == dict.fromkeys(models.hf_shapes(cfg), 1)


def test_each_number_is_used_once():
    """Tensors that count through the model: every number must come out, once."""
    cfg, start, tensors = models.GQA, 0, {}
    for name, shape in models.hf_shapes(cfg).items():
        size = int(np.prod(shape))
        tensors[name] = np.arange(start, start + size).reshape(shape)
        start += size
    out = [whole(cfg, path, reader(tensors)).ravel() for path in param_dims(cfg)]
    np.testing.assert_array_equal(np.sort(np.concatenate(out)), np.arange(start))


@EVERY_MODEL
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameters_are_those_put_together_by_hand(cfg, dtype):
    tensors = {n: x.astype(models.TYPES[dtype]) for n, x in models.hf_tensors(cfg).items()}
    by_hand = models.fused_params(cfg, tensors)
    assert by_hand.keys() == param_dims(cfg).keys()
    for path, expected in by_hand.items():
        out = whole(cfg, path, reader(tensors))
        assert out.dtype == models.TYPES[dtype]
        np.testing.assert_array_equal(out, expected, err_msg=path)


def test_order_of_heads_and_gates():
    """Row k*G*H + g*H + h of q_proj is query g of group k; key and value stand behind them."""
    cfg = models.GQA
    G, H, p = cfg.G, cfg.H, "model.layers.1."
    tensors = models.hf_tensors(cfg)
    qkv = whole(cfg, "layers.1.qkv", reader(tensors))
    d, k, h = 5, 1, 4
    for g in range(G):
        row = (k * G + g) * H + h
        assert qkv[d, k, g, h] == tensors[p + "self_attn.q_proj.weight"][row, d]
    assert qkv[d, k, G, h] == tensors[p + "self_attn.k_proj.weight"][k * H + h, d]
    assert qkv[d, k, G + 1, h] == tensors[p + "self_attn.v_proj.weight"][k * H + h, d]
    out = whole(cfg, "layers.1.out", reader(tensors))
    assert out[k, 3, h, d] == tensors[p + "self_attn.o_proj.weight"][d, (k * G + 3) * H + h]
    gate_up = whole(cfg, "layers.1.gate_up", reader(tensors))
    assert gate_up[d, 0, 7] == tensors[p + "mlp.gate_proj.weight"][7, d]
    assert gate_up[d, 1, 7] == tensors[p + "mlp.up_proj.weight"][7, d]


@EVERY_MODEL
@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize("cuts", [INTERVAL_CUTS, TENSOR_PARALLEL_CUTS], ids=["interval", "tp"])
def test_blocks_are_slices_of_the_whole(cfg, nodes, cuts):
    """Along each axis that a plan cuts, each node's block is that slice, and no more is read."""
    tensors = models.hf_tensors(cfg)
    for path, expected in models.fused_params(cfg, tensors).items():
        # Tables are laid out by INTERVAL_CUTS everywhere.
        name = leaf(path)
        if name not in cuts or cuts[name].dim is None:
            continue
        dims, cut = param_dims(cfg)[path], cuts[name].dim
        read = 0

        def count(name, slices):
            nonlocal read
            block = tensors[name][slices]
            read += block.size
            return block

        for q in range(nodes):
            owned = Plan(cfg, nodes).split(cut).owned(q)
            index = tuple(
                slice(owned.start, owned.stop) if d == cut else slice(0, n)
                for d, n in zip(dims, expected.shape, strict=True)
            )
            if owned:
                block = convert.read_block(cfg, path, index, count)
                np.testing.assert_array_equal(block, expected[index], err_msg=path)
        assert read == expected.size, path


def test_blocks_cut_along_two_axes():
    cfg = models.THREE
    tensors = models.hf_tensors(cfg)
    by_hand = models.fused_params(cfg, tensors)
    runs = {"D": slice(7, 20), "K": slice(1, 3), "F": slice(0, 5)}
    for name, pair in {"qkv": "DK", "out": "KD", "gate_up": "DF", "down": "FD"}.items():
        path = f"layers.0.{name}"
        for cut in itertools.chain.from_iterable((pair, [pair])):
            index = tuple(
                runs[d] if d in cut else slice(0, cfg.size(d)) for d in param_dims(cfg)[path]
            )
            block = convert.read_block(cfg, path, index, reader(tensors))
            np.testing.assert_array_equal(block, by_hand[path][index])
