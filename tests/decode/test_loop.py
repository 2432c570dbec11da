"""The decode loop: greedy text as transformers gives it, batches, and refusals."""

import jax
import numpy as np
import pytest

from fcjax import audit
from fcjax.bench import huggingface
from fcjax.decode import parity
from fcjax.decode.audited import Programs
from fcjax.decode.decoder import Decoder
from fcjax.decode.loop import chunks, decode
from fcjax.mesh import make_mesh
from fcjax.model import checkpoint
from fcjax.sharded import node
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from fcjax.sharded.sampling import Sampling
from fcjax.text.tokenizer import Text

TINY = "weights/tiny"
LAYERS = 6  # of the tiny model


def make_decoder(folder, nodes, interval, length, batch=1, chunk=8, sampling=Sampling(), seed=0):  # noqa: B008
    source = checkpoint.open_folder(folder)
    layout = Layout(ShardedModel(Plan(source.cfg, nodes), interval, sampling), make_mesh(nodes))
    programs = Programs(layout, batch, length, chunk)
    return source, Decoder(programs, source.load(layout.params()), seed)


@pytest.fixture(scope="module")
def tiny_text():
    """A prompt, and the 250 tokens and logits that transformers on torch goes on with."""
    prompt_T = Text(TINY).encode("ROMEO:\n")[0]
    return prompt_T, *huggingface.greedy(TINY, prompt_T, 250)


# Every N of the issue; all layers inside, and some outside.
@pytest.mark.parametrize(
    ("nodes", "interval"),
    [(n, Interval(0, LAYERS)) for n in (2, 3, 4, 5, 6, 7, 8, 12)]
    + [(2, Interval(0)), (3, Interval(4)), (4, Interval(1, 3))],
    ids=lambda x: f"{x.first}+{x.depth}" if isinstance(x, Interval) else x,
)
def test_250_greedy_tokens_are_those_of_transformers(nodes, interval, tiny_text):
    prompt_T, tokens, logits = tiny_text
    _, decoder = make_decoder(TINY, nodes, interval, len(prompt_T) + 250)
    found = huggingface.compare(decoder, prompt_T, tokens, logits)
    assert found.passed and found.steps == 250 and found.difference is None, found
    assert len(set(tokens)) > 20  # a text that does not stand still


def test_250_greedy_tokens_of_a_real_model_are_those_of_transformers(smollm2):
    prompt_T = Text(smollm2).encode("Write a story about a whale.")[0]
    tokens, logits = huggingface.greedy(smollm2, prompt_T, 250)
    # 3 KV groups on 2 nodes: an uneven split.
    _, decoder = make_decoder(smollm2, 2, Interval(0, 30), len(prompt_T) + 250)
    found = huggingface.compare(decoder, prompt_T, tokens, logits)
    assert found.passed and found.steps == 250 and found.difference is None, found


def test_another_text_fails_unless_rounding_explains_it(tiny_text):
    prompt_T, tokens, logits = tiny_text
    _, decoder = make_decoder(TINY, 2, Interval(0, LAYERS), len(prompt_T) + 9)
    other = [*tokens[:5], tokens[5] + 1, *tokens[6:9]]
    found = huggingface.compare(decoder, prompt_T, other, logits[:9])
    assert (found.difference, found.steps, found.passed) == (5, 6, False)
    second, first = np.sort(logits[5].astype(np.float64))[-2:]
    assert found.margin == (first - second) / np.linalg.norm(logits[5].astype(np.float64))
    # A tie may go either way.
    assert huggingface.Comparison(6, 1e-6, 5, 1e-7).passed
    assert not huggingface.Comparison(9, 2e-5).passed


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, 40, 0.9)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("interval", [Interval(0, LAYERS), Interval(1)], ids=["whole", "layer"])
def test_rows_of_a_batch_decode_as_they_do_alone(interval, sampling):
    """Prompts of 1 to 19 tokens in chunks of 8: none, a part of one, one and three."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 2048, n) for n in (1, 19, 9, 5)]

    def texts(decoder, prompts):
        steps = [s for s in decode(decoder, prompts, 12) if s.index >= 0]
        return np.concatenate([s.tokens_out for s in steps], axis=1).tolist()

    _, all_rows = make_decoder(TINY, 3, interval, 40, len(prompts), 8, sampling, 7)
    together = texts(all_rows, prompts)
    assert len({tuple(row) for row in together}) == len(prompts)
    _, one_row = make_decoder(TINY, 3, interval, 40, 1, 8, sampling, 7)
    for prompt, row in zip(prompts, together, strict=True):
        # What an earlier prompt left in the caches is behind the new one's tokens: never read.
        assert texts(one_row, [prompt]) == [row]


@pytest.mark.parametrize("lengths", [(1,), (2,), (9,), (10,), (1, 17, 8)])
def test_chunks_put_every_token_but_the_last_where_it_stands(lengths):
    prompts = [np.arange(100 * (row + 1), 100 * (row + 1) + n) for row, n in enumerate(lengths)]
    length = max(lengths)
    slots = np.full((len(lengths), length + 8), -1)
    for tokens_BT, pos_B in chunks(prompts, 8):
        assert tokens_BT.shape == (len(lengths), 8)
        for row, pos in enumerate(pos_B):
            slots[row, pos : pos + 8] = tokens_BT[row]
    for row, prompt in enumerate(prompts):
        np.testing.assert_array_equal(slots[row, : len(prompt) - 1], prompt[:-1])
    assert len(chunks(prompts, 8)) == -(-(length - 1) // 8)


def test_end_of_text_stops_the_loop_when_every_row_has_ended():
    prompts = [np.array([1, 2]), np.array([7])]
    _, decoder = make_decoder(TINY, 2, Interval(0, LAYERS), 30, batch=2)
    free = [s.tokens_out[:, 0].tolist() for s in decode(decoder, prompts, 20) if s.index >= 0]
    first, second = (list(row) for row in zip(*free, strict=True))
    ends = {first[3], second[8]}
    last = max(next(i for i, t in enumerate(row) if t in ends) for row in (first, second))
    _, decoder = make_decoder(TINY, 2, Interval(0, LAYERS), 30, batch=2)
    steps = list(decode(decoder, prompts, 20, eos=tuple(ends)))
    assert [s.index for s in steps] == list(range(-1, last + 1))
    assert [s.tokens_out[:, 0].tolist() for s in steps[1:]] == free[: last + 1]


def test_a_step_says_which_tokens_are_the_rows_own():
    _, decoder = make_decoder(TINY, 2, Interval(0, LAYERS), 30, batch=3)
    steps = list(decode(decoder, [np.arange(11), np.arange(1), np.arange(6)], 1))
    assert [s.own.sum(axis=1).tolist() for s in steps] == [[8, 0, 5], [2, 0, 0], [1, 1, 1]]
    assert [s.own.shape for s in steps] == [(3, 8), (3, 8), (3, 1)]
    assert steps[1].own[0].tolist() == [True, True] + [False] * 6


def test_each_step_takes_what_the_last_one_gave():
    _, decoder = make_decoder(TINY, 2, Interval(0, LAYERS), 30)
    steps = list(decode(decoder, [np.arange(11)], 5))
    assert [s.index for s in steps] == [-2, -1, 0, 1, 2, 3, 4]
    assert steps[2].tokens_in.tolist() == [[10]]
    assert [s.pos.tolist() for s in steps] == [[0], [8], [10], [11], [12], [13], [14]]
    for before, after in zip(steps[2:], steps[3:], strict=False):
        np.testing.assert_array_equal(after.tokens_in, before.tokens_out)


@pytest.mark.parametrize("interval", [Interval(0, LAYERS), Interval(1, 2)], ids=["whole", "part"])
def test_every_pass_is_within_the_bound_of_the_reference(interval):
    """Prefill chunks too, with rows of different lengths and what fills them up."""
    source, decoder = make_decoder(TINY, 3, interval, 40, batch=2)
    oracle = parity.Oracle(source, interval, 2, decoder.programs.slots)
    prompts = [np.arange(100, 119), np.arange(7, 10)]
    for step in decode(decoder, prompts, 6):
        shards = step.output.shards(source.cfg)
        reference = oracle.step(step.tokens_in, step.pos)
        figures = parity.compare(source.cfg, shards, reference, step.own)
        assert figures.keys() >= {"residual"} and ("logits" in figures) == (step.index >= 0)
        assert max(figures.values()) <= parity.BOUND["float32"], (step.index, figures)
        assert step.output.copies_agree(shards)


def test_what_is_watched_is_the_interval():
    _, decoder = make_decoder(TINY, 2, Interval(1, 2), 30)
    seen = []
    decoder.watch = lambda when, values: seen.append((when, set(values)))
    list(decode(decoder, [np.arange(3)], 1))
    inputs = {"tokens", "pos", "seed", "residual"}
    outputs = inputs | {"qkv", "complete_residual", "complete_qkv"}
    assert seen == [("entry", inputs), ("exit", outputs)] * 2


def test_bad_tokens_and_a_full_cache_are_refused_in_one_line():
    _, decoder = make_decoder(TINY, 2, Interval(0), 4)
    for tokens, pos, message in (
        ([[1, 2048]], [0], "tokens: expected ids of 0 to 2047, got 2048"),
        ([[-1]], [0], "tokens: expected ids of 0 to 2047, got -1"),
        ([[1], [2]], [0], "tokens: expected shape (1, T) with T > 0, got (2, 1)"),
        ([[]], [0], "tokens: expected shape (1, T) with T > 0, got (1, 0)"),
        ([[1]], [-1], "pos: expected 1 positions from 0 on, got [-1]"),
        ([[1]], [0, 1], "pos: expected 1 positions from 0 on, got [0 1]"),
        ([[1, 2, 3]], [10], "cache: expected at most 12 slots, got 10 + 3"),
    ):
        with pytest.raises(ValueError) as e:
            decoder.step(np.array(tokens), pos)
        assert str(e.value) == message
    for prompts, message in (
        ([[1, 2, 3]], "cache: expected at most 4 tokens, got prompt 0 of 3 and 2 more"),
        ([[]], "prompt 0: expected at least one token, got []"),
        ([[1], [2]], "prompts: expected 1, one for each row, got 2"),
    ):
        with pytest.raises(ValueError) as e:
            next(decode(decoder, [np.array(p, int) for p in prompts], 2))
        assert str(e.value) == message
    with pytest.raises(ValueError, match="cache: expected 1 to 512 tokens.*, got 513"):
        Programs(decoder.programs.model, 1, 513)
    with pytest.raises(ValueError, match="chunk: expected at least 2 tokens a prefill pass, got 1"):
        Programs(decoder.programs.model, 1, 4, chunk=1)
    assert not decoder.programs.audits  # nothing was compiled for any of this


def test_logits_that_are_no_numbers_end_the_run():
    _, decoder = make_decoder(TINY, 2, Interval(0, LAYERS), 4)
    norm = decoder.params["norm"]
    decoder.params["norm"] = jax.device_put(np.full(norm.shape, np.nan, np.float32), norm.sharding)
    with pytest.raises(FloatingPointError, match="step 0: expected a number among the logits"):
        list(decode(decoder, [np.array([1])], 1))


def test_no_program_runs_whose_audit_failed(monkeypatch):
    _, decoder = make_decoder(TINY, 2, Interval(0), 4)
    leaking = node.run_interval

    def with_an_extra_gather(model, params, caches, x_BTDn, pos_B):
        out = leaking(model, params, caches, x_BTDn, pos_B)
        everything = jax.lax.psum_scatter(
            jax.lax.all_gather(x_BTDn, "node", axis=2, tiled=True),
            "node",
            scatter_dimension=2,
            tiled=True,
        )
        return (out[0] + 0 * everything, *out[1:])

    monkeypatch.setattr(node, "run_interval", with_an_extra_gather)
    assert not decoder.programs.prepare(1).ok
    with pytest.raises(audit.Failed):
        decoder.step(np.array([[1]]), [0])
