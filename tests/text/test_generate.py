"""Text from prompts: that of transformers, alone or in a batch, and what the caches save."""

import functools

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from fcjax.decode.audited import Programs
from fcjax.decode.decoder import Decoder
from fcjax.decode.loop import chunks, decode
from fcjax.mesh import make_mesh
from fcjax.model import checkpoint
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from fcjax.sharded.sampling import Sampling
from fcjax.text import chat, generate
from fcjax.text.generate import Generator, InOrder, Piece
from fcjax.text.tokenizer import Text

TINY = "weights/tiny"
GREEDY = Sampling()
# Of 2 to 42 tokens: less than a prefill pass, more than one, and a length that no other row has.
PROMPTS = (
    "ROMEO:",
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\n"
    "First Citizen:\nYou are all resolved",
    "O",
    "KING RICHARD III:\nNow is the winter",
)


@functools.cache
def compiled(folder, nodes, batch, length, rule, interval):
    """Programs and parameters; decoders share them."""
    source = checkpoint.open_folder(folder)
    interval = interval or Interval(0, source.cfg.L)
    layout = Layout(ShardedModel(Plan(source.cfg, nodes), interval, rule), make_mesh(nodes))
    return Programs(layout, batch, length), source.load(layout.params())


def make_generator(folder, nodes, batch=1, length=200, *, rule=GREEDY, interval=None, seed=0):
    decoder = Decoder(*compiled(folder, nodes, batch, length, rule, interval), seed)
    return Generator(decoder, Text(folder))


def encode(folder, prompts=PROMPTS):
    return [Text(folder).encode(prompt)[0] for prompt in prompts]


@functools.cache
def oracle(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def greedy(folder, ids, new_tokens, eos=None, penalty=1.0) -> list[int]:
    """The new ids that transformers gives, an end-of-text id included."""
    return list(_greedy(folder, tuple(map(int, ids)), new_tokens, eos, penalty))


@functools.cache
def _greedy(folder, ids, new_tokens, eos, penalty):
    ids = torch.asarray([ids], dtype=torch.int64)
    out = oracle(folder).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=eos,
        repetition_penalty=penalty,
        pad_token_id=0,
    )
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("nodes", [2, 3])
def test_rows_of_a_batch_are_what_transformers_gives_for_each_alone(nodes):
    ids, new = encode(TINY), 40
    free = [greedy(TINY, prompt, new) for prompt in ids]
    # A token that some rows choose, at different steps, ends them.
    eos = next(t for t in free[0][8:] if any(t not in row for row in free))
    expected = [greedy(TINY, prompt, new, eos) for prompt in ids]
    assert len({len(row) for row in expected}) > 2 and max(map(len, expected)) == new

    generator = make_generator(TINY, nodes, len(ids))
    generator.text.eos = (eos, 2047)
    pieces = []
    result = generator.generate(ids, new, pieces.append)
    for i, row in enumerate(result.rows):
        assert list(row.ids) == expected[i]
        stopped = expected[i][-1] == eos
        assert row.finish == ("stop" if stopped else "length")
        assert row.text == generator.text.decode(row.ids[:-1] if stopped else row.ids)
        own = [piece for piece in pieces if piece.row == i]
        assert "".join(piece.text for piece in own) == row.text
        assert [piece.last for piece in own] == [False] * (len(row.ids) - 1) + [True]
    assert 0 < result.first_seconds < result.seconds and result.tokens_per_second > 0
    assert f"row 1: {len(ids[1])} prompt tokens, {len(expected[1])} new" in result.summary()


def test_a_row_is_the_same_alone_whatever_the_caches_held():
    ids, new = encode(TINY), 12
    alone = make_generator(TINY, 2)
    alone.text.eos = ()
    for prompt in (*ids, ids[0]):
        (row,) = alone.generate([prompt], new).rows
        assert list(row.ids) == greedy(TINY, prompt, new)
        assert row.finish == "length"


def test_unmodified_layers_give_the_same_text():
    generator = make_generator(TINY, 2, interval=Interval(2, 1))
    (row,) = generator.generate(encode(TINY, PROMPTS[1:2]), 12).rows
    assert list(row.ids) == greedy(TINY, encode(TINY)[1], 12)


def test_draws_are_the_same_on_any_number_of_nodes_and_in_any_batch():
    rule, ids = Sampling(0.9, 40, 0.95), encode(TINY)[:2]
    both = make_generator(TINY, 2, 2, rule=rule, seed=3)
    first = [row.ids for row in both.generate(ids, 20).rows]
    assert [row.ids for row in both.generate(ids, 20).rows] == first
    alone = make_generator(TINY, 3, rule=rule, seed=3)
    assert [alone.generate([prompt], 20).rows[0].ids for prompt in ids] == first
    other = Decoder(both.decoder.programs, both.decoder.params, seed=4)
    assert [row.ids for row in Generator(other, both.text).generate(ids, 20).rows] != first
    assert [list(row) for row in first] != [greedy(TINY, prompt, 20) for prompt in ids]


def test_repetition_is_penalised_as_with_transformers():
    # Twice: the second time all of the prompt but its last token is in the caches.
    ids, rule = encode(TINY)[3], Sampling(repetition_penalty=1.3)
    generator = make_generator(TINY, 2, rule=rule)
    expected = greedy(TINY, ids, 20, penalty=1.3)
    for _ in range(2):
        assert list(generator.generate([ids], 20).rows[0].ids) == expected
    assert expected != greedy(TINY, ids, 20)


def count_passes(monkeypatch, decoder) -> list[tuple[int, int]]:
    """(tokens, position of row 0) of every pass from now on."""
    seen, step = [], decoder.step

    def counted(tokens_BT, pos_B):
        seen.append((tokens_BT.shape[1], int(pos_B[0])))
        return step(tokens_BT, pos_B)

    monkeypatch.setattr(decoder, "step", counted)
    return seen


def test_a_conversation_goes_on_from_its_caches(monkeypatch):
    generator = make_generator(TINY, 2)
    talk = chat.Conversation(generator.text)
    first = talk.ask(PROMPTS[1])
    answer = generator.generate([first], 10).rows[0]
    talk.keep(PROMPTS[1], answer.text)
    second = talk.ask("\n\nAll:\n")
    expected = greedy(TINY, second, 10)
    passes = count_passes(monkeypatch, generator.decoder)
    row = generator.generate([second], 10).rows[0]
    assert list(row.ids) == expected
    # All but the last token of the answer had been fed; the tokenizer may write the rest otherwise.
    assert len(first) <= row.cached <= len(first) + 9
    assert passes[0] == (32, row.cached)
    assert passes[1:] == [(1, len(second) - 1 + i) for i in range(10)]
    # What is the same up to its end: only the last token is fed again.
    passes.clear()
    row = generator.generate([second], 10).rows[0]
    assert list(row.ids) == expected and row.cached == len(second) - 1
    assert passes == [(1, len(second) - 1 + i) for i in range(10)]
    # From the middle on otherwise.
    other = np.concatenate([second[:20], encode(TINY)[3]])
    assert list(generator.generate([other], 10).rows[0].ids) == greedy(TINY, other, 10)
    talk.reset()
    np.testing.assert_array_equal(talk.ask(PROMPTS[1]), first)


def test_a_generation_that_breaks_off_leaves_caches_that_are_known():
    generator = make_generator(TINY, 2)

    def show(piece):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generator.generate(encode(TINY)[1:2], 10, show)
    prompt = encode(TINY)[1]
    assert list(generator.generate([prompt], 10).rows[0].ids) == greedy(TINY, prompt, 10)


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_real_model_answers_as_with_transformers(smollm2, nodes):
    generator = make_generator(smollm2, nodes)
    (ids,) = encode(smollm2, ["What is the capital of France?"])
    (row,) = generator.generate([ids], 20).rows
    assert list(row.ids) == greedy(smollm2, ids, 20, eos=2)
    assert row.text == "The capital of France is Paris." and row.finish == "stop"
    assert [generator.decoder.programs.prepare(tokens).ok for tokens in (32, 1)] == [True, True]


def test_chunks_leave_out_what_is_in_the_caches():
    prompts = [np.arange(10, 20), np.arange(30, 33), np.arange(50, 57)]
    passes = chunks(prompts, 4, [3, 2, 0])
    assert [pos_B.tolist() for _, pos_B in passes] == [[3, 2, 0], [7, 2, 4]]
    assert passes[0][0].tolist() == [[13, 14, 15, 16], [0, 0, 0, 0], [50, 51, 52, 53]]
    assert passes[1][0].tolist() == [[17, 18, 0, 0], [0, 0, 0, 0], [54, 55, 0, 0]]
    assert chunks([np.arange(3)], 4, [2]) == []


def test_tokens_in_the_caches_are_fewer_than_those_of_the_prompt():
    decoder = make_generator(TINY, 2).decoder
    for cached in [3], [-1], [0, 0]:
        with pytest.raises(
            ValueError, match=r"cached: expected 1 numbers of tokens, less than \[3\]"
        ):
            next(decode(decoder, [np.arange(3)], 4, cached_B=cached))


def test_rows_are_written_one_below_the_other():
    written = []
    show = InOrder(3, written.append)
    show(Piece(1, "b", False))
    show(Piece(0, "a", False))
    assert written == ["--- prompt 0 ---\n", "a"]
    show(Piece(1, "B", True))
    show(Piece(2, "c", False))
    show(Piece(0, "A", True))
    assert "".join(written) == "--- prompt 0 ---\naA\n--- prompt 1 ---\nbB\n--- prompt 2 ---\nc"
    show(Piece(2, "", True))
    assert written[-1] == "\n"
    one = []
    InOrder(1, one.append)(Piece(0, "text", True))
    assert one == ["text\n"]


def test_there_has_to_be_room():
    prompts = [np.arange(5), np.arange(9)]
    assert generate.room(prompts, 20, None, 128) == 11
    assert generate.room(prompts, 20, None, 4) == 4
    assert generate.room(prompts, 20, 11, 4) == 11
    with pytest.raises(ValueError) as e:
        generate.room(prompts, 20, 12, 4)
    assert str(e.value) == (
        "max_new_tokens: expected at most 11 after the 9 tokens of prompt 1, as there are 20"
        " positions, got 12"
    )
    with pytest.raises(ValueError, match="prompt 1: expected at most 8 tokens and one to be made"):
        generate.room(prompts, 9, None, 4)
