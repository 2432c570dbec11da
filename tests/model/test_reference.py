"""The unsharded reference against Hugging Face transformers on the same files, piece by piece."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from transformers import AutoModelForCausalLM
from transformers.models.qwen2 import modeling_qwen2 as hf

from fcjax.model import checkpoint, functions, reference
from fcjax.model.params import param_shapes
from tests import models, nodes

torch.set_num_threads(1)  # the tensors are tiny
BOUND = 1e-5
B, T, LENGTH = 3, 7, 64
CASES = {**models.ALL, "long rope": dataclasses.replace(models.MHA, rope_theta=1e6, eps=1e-5)}


def t(x):
    return torch.from_numpy(np.array(x, np.float32))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Pair:
    """The same files as a Flax and as a torch model, both in f32."""

    cfg: object
    flax: reference.Transformer
    torch: torch.nn.Module


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def pair(request, tmp_path_factory):
    folder = models.write_folder(tmp_path_factory.mktemp("hf"), request.param)
    source = checkpoint.open_folder(folder)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    targets = {
        path: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=device)
        for path, shape in param_shapes(source.cfg).items()
    }
    flax = reference.set_params(reference.abstract_model(source.cfg), source.load(targets))
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        yield Pair(source.cfg, flax, model.eval())


def angles(pair, positions):
    """cos and sin as transformers makes them, [B, T, H]."""
    dummy = torch.zeros(1)
    return pair.torch.model.rotary_emb(dummy, torch.as_tensor(positions)[None])


def test_rms_norm(pair):
    x = 30 * normal(B, T, pair.cfg.D)
    x[0, 0] *= 1e-4  # where eps matters
    norm = pair.torch.model.layers[1].input_layernorm
    weight = pair.flax.layers[1].input_norm[...]
    out = functions.rms_norm(x, weight, pair.cfg.eps)
    assert nodes.error(out, norm(t(x)).numpy()) < BOUND


@pytest.mark.parametrize("positions", [range(7), range(1000, 1007), range(32760, 32767)])
def test_rope(pair, positions):
    cfg = pair.cfg
    q = normal(B, T, cfg.K, cfg.G, cfg.H)
    out = functions.rope(q, jnp.full(B, positions.start), cfg.rope_theta)
    q_BnTH = t(q).reshape(B, T, cfg.K * cfg.G, cfg.H).transpose(1, 2)
    ref, _ = hf.apply_rotary_pos_emb(q_BnTH, q_BnTH, *angles(pair, list(positions)))
    # f32 angles are only good to 2^-24 of the position, in both.
    bound = BOUND if positions.stop < 10000 else 1e-3
    assert nodes.error(out, ref.transpose(1, 2).reshape(q.shape).numpy()) < bound


def test_qkv(pair):
    cfg, x = pair.cfg, normal(B, T, pair.cfg.D)
    layer = pair.torch.model.layers[1]
    attn, normed = layer.self_attn, layer.input_layernorm(t(x))
    out = np.asarray(pair.flax.layers[1].qkv_proj(x))
    q = attn.q_proj(normed).numpy().reshape(B, T, cfg.K, cfg.G, cfg.H)
    assert nodes.error(out[..., : cfg.G, :], q) < BOUND
    for slot, proj in (cfg.G, attn.k_proj), (cfg.G + 1, attn.v_proj):
        ref = proj(normed).numpy().reshape(B, T, cfg.K, cfg.H)
        assert nodes.error(out[..., slot, :], ref) < BOUND


def causal(T):
    return torch.full((T, T), float("-inf")).triu(1)[None, None]


def test_attention(pair):
    """Attention and the output projection, without norm and residual."""
    cfg, x = pair.cfg, normal(B, T, pair.cfg.D)
    layer = pair.torch.model.layers[1]
    normed = layer.input_layernorm(t(x))
    ref, _ = layer.self_attn(normed, angles(pair, list(range(T))), causal(T))
    cache = reference.init_cache(cfg, B, LENGTH)[1]
    qkv = pair.flax.layers[1].qkv_proj(x)
    o, _ = functions.attention(
        qkv, pair.flax.layers[1].weights(), cache, jnp.zeros(B, jnp.int32), cfg
    )
    out = functions.out_proj(o, pair.flax.layers[1].out[...])
    assert nodes.error(out, ref.numpy()) < BOUND


def test_mlp(pair):
    x = normal(B, T, pair.cfg.D)
    layer = pair.torch.model.layers[2]
    ref = layer.mlp(layer.post_attention_layernorm(t(x)))
    assert nodes.error(pair.flax.layers[2].mlp(x), ref.numpy()) < BOUND


def test_layer(pair):
    x = normal(B, T, pair.cfg.D)
    layer = pair.torch.model.layers[1]
    ref = layer(t(x), attention_mask=causal(T), position_embeddings=angles(pair, list(range(T))))
    cache = reference.init_cache(pair.cfg, B, LENGTH)[1]
    out, _ = pair.flax.layers[1](x, cache, jnp.zeros(B, jnp.int32))
    assert nodes.error(out, ref.numpy()) < BOUND


def test_residuals_and_logits(pair):
    tokens = np.random.default_rng(2).integers(0, pair.cfg.V, (B, T), np.int32)
    cache = reference.init_cache(pair.cfg, B, LENGTH)
    residuals, _, logits, _ = nodes.run_reference(pair.flax, tokens, cache, jnp.int32(0))
    ref = pair.torch(torch.from_numpy(tokens).long(), output_hidden_states=True)
    assert len(residuals) == pair.cfg.L + 1
    # The last hidden state of transformers has the final norm applied.
    for mine, theirs in zip(residuals[:-1], ref.hidden_states[:-1], strict=True):
        assert nodes.error(mine, theirs.numpy()) < BOUND
    normed = functions.rms_norm(residuals[-1], pair.flax.norm[...], pair.cfg.eps)
    assert nodes.error(normed, ref.hidden_states[-1].numpy()) < BOUND
    assert nodes.error(logits, ref.logits.numpy()) < BOUND


@jax.jit
def next_token(model, tokens, cache, pos_B):
    residuals, cache = model(tokens, cache, pos_B)
    logits = model.logits(residuals[-1][:, -1:])[:, 0]
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)[:, None], cache


def test_50_greedy_tokens(pair):
    prompt = np.random.default_rng(3).integers(0, pair.cfg.V, (2, 5), np.int32)
    ref = pair.torch.generate(
        torch.from_numpy(prompt).long(), attention_mask=torch.ones(2, 5, dtype=torch.long),
        max_new_tokens=50, do_sample=False, eos_token_id=None, pad_token_id=0,
    ).numpy()
    cache, tokens, out = reference.init_cache(pair.cfg, 2, LENGTH), prompt, [prompt]
    for pos in (0, *range(5, 54)):
        tokens, cache = next_token(pair.flax, tokens, cache, jnp.full(2, pos))
        out.append(np.asarray(tokens))
    assert all(len(set(row[5:])) > 3 for row in ref)  # a text that does not stand still
    np.testing.assert_array_equal(np.concatenate(out, axis=1), ref)


# Without transformers


@pytest.mark.parametrize("M", [1, 6, 7, 8, 46, 64, 8960])
@pytest.mark.parametrize("ends", [(5,), (3, 4, 2)])
def test_project(M, ends):
    """Sums over M, whatever runs it is cut into; the axes behind M keep their order."""
    x, w = normal(2, 3, M), normal(M, *ends, seed=1)
    out = functions.project(x, w)
    assert out.shape == (2, 3, *ends)
    exact = np.tensordot(x.astype(np.float64), w, axes=1)
    assert nodes.error(np.ravel(out), np.ravel(exact)) < 2e-6


def test_out_proj():
    o, w = normal(2, 3, 2, 7, 6), normal(2, 7, 6, 5, seed=1)
    exact = np.einsum("btkgh,kghd->btd", o.astype(np.float64), w)
    assert nodes.error(np.ravel(functions.out_proj(o, w)), np.ravel(exact)) < 2e-6


@pytest.fixture(scope="module")
def model():
    return nodes.reference_model(models.GQA, models.random_params(models.GQA))


def test_rms_norm_in_bf16_is_torch_bit_for_bit():
    """Normalised in f32, cast, then multiplied in bf16; the other orders differ in many numbers."""
    # Integers: their sum of squares is the same in any order of summing.
    x = np.random.default_rng(0).integers(-9, 10, (40, 5, 896)).astype(jnp.bfloat16)
    w = (1 + 0.3 * normal(896)).astype(jnp.bfloat16)
    norm = hf.Qwen2RMSNorm(896, eps=1e-6)
    norm.weight.data = t(w.astype(np.float32)).bfloat16()
    with torch.no_grad():
        ref = norm(t(x.astype(np.float32)).bfloat16()).float().numpy()
    out = jax.jit(functions.rms_norm, static_argnums=2)(x, w, 1e-6)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(out, np.float32), ref)
    x32, w32 = x.astype(np.float32), w.astype(np.float32)
    late = (x32 / np.sqrt(np.mean(x32**2, -1, keepdims=True) + 1e-6) * w32).astype(jnp.bfloat16)
    assert np.mean(late.astype(np.float32) != ref) > 0.1


def test_rope_by_hand():
    """Head dimension 4 at position 1: coordinate h turns with h + 2, not with its neighbour."""
    x = np.array([1.0, 2.0, 3.0, 4.0], np.float32).reshape(1, 1, 1, 1, 4)
    out = np.asarray(functions.rope(x, jnp.array([1]), 100.0)).ravel()
    a, b = 1.0, 0.1  # 100 ** (-2h / 4)
    expected = [
        1 * np.cos(a) - 3 * np.sin(a), 2 * np.cos(b) - 4 * np.sin(b),
        3 * np.cos(a) + 1 * np.sin(a), 4 * np.cos(b) + 2 * np.sin(b),
    ]
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(functions.rope(x, jnp.array([0]), 100.0)), x)


def test_query_head_h_reads_group_h_div_G():
    """14 queries, 2 groups: heads 0..6 read group 0 (h % 2 would alternate)."""
    cfg = models.GQA
    q = np.zeros((1, 1, cfg.K, cfg.G, cfg.H), np.float32)
    k = np.zeros((1, cfg.K, 4, cfg.H), np.float32)
    v = np.zeros((1, cfg.K, 4, cfg.H), np.float32)
    v[:, 0], v[:, 1] = 10, 20
    o = np.asarray(functions.attend(q, k, v, jnp.array([0]))).reshape(cfg.K * cfg.G, cfg.H)
    np.testing.assert_array_equal(o[:, 0], [10] * 7 + [20] * 7)


def test_attention_reads_slots_up_to_its_own():
    """Equal scores: token t sees the mean of slots 0 .. pos + t, whatever stands behind them."""
    v = np.full((1, 1, 8, 2), 1e9, np.float32)
    v[0, 0, :6, 0] = v[0, 0, :6, 1] = [0, 1, 2, 3, 4, 5]
    q, k = np.zeros((1, 3, 1, 1, 2), np.float32), np.zeros((1, 1, 8, 2), np.float32)
    o = np.asarray(functions.attend(q, k, v, jnp.array([3])))[0, :, 0, 0, 0]
    np.testing.assert_allclose(o, [1.5, 2.0, 2.5], rtol=1e-6)


def test_softmax_stands_large_scores():
    q = np.full((1, 1, 1, 1, 4), 1e4, np.float32)
    k = np.zeros((1, 1, 2, 4), np.float32)
    k[0, 0, 1] = 1e4
    v = np.array([1, 2], np.float32).reshape(1, 1, 2, 1) * np.ones((1, 1, 2, 4), np.float32)
    np.testing.assert_array_equal(
        functions.attend(q, k, v, jnp.array([1])), np.full((1, 1, 1, 1, 4), 2)
    )


def test_causal(model):
    """A later token changes nothing before it, bit for bit, and something at it."""
    tokens = np.random.default_rng(0).integers(0, models.GQA.V, (1, 6), np.int32)
    other = tokens.copy()
    other[0, 4] = (other[0, 4] + 1) % models.GQA.V
    cache = reference.init_cache(models.GQA, 1, 8)
    a, b = (nodes.run_reference(model, x, cache, jnp.int32(0))[2] for x in (tokens, other))
    np.testing.assert_array_equal(a[:, :4], b[:, :4])
    assert nodes.error(a[:, 4:], b[:, 4:]) > 1e-2


@pytest.mark.parametrize("first", [1, 2, 7])
def test_decode_is_prefill_at_every_step(model, first):
    """Lengths from 1 to the last slot of the cache, each logit of each step."""
    tokens = np.random.default_rng(0).integers(0, models.GQA.V, (2, 8), np.int32)
    cache = reference.init_cache(models.GQA, 2, 8)
    *_, logits, whole = nodes.run_reference(model, tokens, cache, jnp.int32(0))
    steps, pos = [], 0
    for T in (first, *[1] * (8 - first)):
        *_, step, cache = nodes.run_reference(
            model, tokens[:, pos : pos + T], cache, jnp.int32(pos)
        )
        steps.append(step)
        pos += T
    assert nodes.error(np.concatenate(steps, axis=1), logits) < 2e-6
    for mine, theirs in zip(jax.tree.leaves(cache), jax.tree.leaves(whole), strict=True):
        assert nodes.error(mine, theirs) < 2e-6


def test_a_row_is_by_itself(model):
    """The other rows of a batch change nothing but the last bits."""
    tokens = np.random.default_rng(0).integers(0, models.GQA.V, (3, 5), np.int32)
    *_, together, _ = nodes.run_reference(
        model, tokens, reference.init_cache(models.GQA, 3, 8), jnp.int32(0)
    )
    *_, alone, _ = nodes.run_reference(
        model, tokens[1:2], reference.init_cache(models.GQA, 1, 8), jnp.int32(0)
    )
    assert nodes.error(together[1:2], alone) < 2e-6


def test_rows_at_positions_of_their_own(model):
    """Each row of a batch goes on from where it stands, bit for bit like every other batch of 3."""
    tokens = np.random.default_rng(0).integers(0, models.GQA.V, (3, 8), np.int32)
    cache = reference.init_cache(models.GQA, 3, 12)
    *_, logits, whole = nodes.run_reference(model, tokens, cache, 0)
    # Row b is 2 b tokens behind: what stands behind them in the cache is written again.
    starts = np.array([6, 4, 2], np.int32)
    now = np.stack([row[p : p + 1] for row, p in zip(tokens, starts, strict=True)])
    *_, step, cache = nodes.run_reference(model, now, whole, starts)
    for row, p in enumerate(starts):
        assert nodes.error(step[row, 0], logits[row, p]) < 2e-6
    for mine, theirs in zip(jax.tree.leaves(cache), jax.tree.leaves(whole), strict=True):
        written = np.arange(12) == starts[:, None]  # the slots of this step
        untouched = ~np.broadcast_to(written[:, None, :, None], mine.shape)
        np.testing.assert_array_equal(np.asarray(mine)[untouched], np.asarray(theirs)[untouched])
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kept, bound", [(jnp.bfloat16, 2e-2), (jnp.float16, 2e-3)])
def test_cache_of_another_type(model, kept, bound):
    """f32 activations over a narrower cache: it stays narrow, and costs its rounding only."""
    tokens = np.random.default_rng(0).integers(0, models.GQA.V, (1, 6), np.int32)
    wide, narrow = (reference.init_cache(models.GQA, 1, 8, d) for d in (jnp.float32, kept))
    *_, exact, _ = nodes.run_reference(model, tokens, wide, jnp.int32(0))
    *_, logits, cache = nodes.run_reference(model, tokens, narrow, jnp.int32(0))
    assert {c.dtype for c in jax.tree.leaves(cache)} == {jnp.dtype(kept)}
    assert logits.dtype == jnp.float32
    assert 1e-6 < nodes.error(logits, exact) < bound


def test_parameters_go_in_and_out():
    cfg, params = models.UNTIED, models.random_params(models.UNTIED)
    model = nodes.reference_model(cfg, params)
    out = reference.get_params(model)
    assert out.keys() == param_shapes(cfg).keys() == params.keys()
    for path, x in params.items():
        np.testing.assert_array_equal(out[path], x)
        assert out[path].shape == param_shapes(cfg)[path]


def test_parameters_of_another_model_are_refused():
    params = models.random_params(models.THREE)
    del params["norm"]
    with pytest.raises(ValueError, match="parameters: expected"):
        reference.set_params(reference.abstract_model(models.THREE), params)


def test_fresh_parameters():
    cfg = dataclasses.replace(models.UNTIED, L=1)

    def fresh():
        model = reference.Transformer(cfg, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
        return reference.get_params(model)

    for path, x in jax.jit(fresh)().items():
        assert x.dtype == jnp.bfloat16 and x.shape == param_shapes(cfg)[path]
        x = np.asarray(x, np.float32)
        if path.endswith("norm"):
            np.testing.assert_array_equal(x, 1)
        elif path.endswith("bias"):
            np.testing.assert_array_equal(x, 0)
        else:
            assert abs(x.std() - 0.02) < 0.002
