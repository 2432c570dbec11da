"""Text in and out, with the packaged model's tokenizer."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from fcjax.text.tokenizer import Stream, Text
from tests import models

TINY = pathlib.Path(__file__).parents[2] / "weights" / "tiny"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def folder(tmp_path):
    """A copy of the tokenizer, to be changed."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json":
        shutil.copy(TINY / name, folder)
    return folder


@pytest.mark.parametrize(
    "words", ["ROMEO:\nO, speak again, bright angel!", " two  spaces ", "naïve 1597 — ☂", "\n\n"]
)
def test_round_trip(words):
    text = Text(TINY)
    ids = text.encode(words)
    assert ids.dtype == np.int32 and ids.ndim == 2 and ids.shape[0] == 1
    assert text.decode(ids[0]) == words


def test_a_plain_model_gets_the_prompt_as_it_is(folder):
    text = Text(folder)
    assert not text.chat
    raw = text._tokenizer.backend_tokenizer.encode("ROMEO:", add_special_tokens=False).ids
    np.testing.assert_array_equal(text.encode("ROMEO:"), [raw])


def test_a_chat_model_gets_a_message(folder):
    models.edit_json(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    text = Text(folder)
    assert text.chat
    assert text.decode(text.encode("Who's there?")[0]) == "<user>Who's there?<assistant>"


def test_special_tokens_are_not_decoded(folder):
    text = Text(folder)
    (eos,) = text.eos
    ids = [*text.encode("Exit")[0], eos]
    assert text.decode(np.array(ids)) == "Exit"


@pytest.mark.parametrize(
    "generation, config, eos",
    [
        ({"eos_token_id": [3, 7]}, {"eos_token_id": 5}, (3, 7)),
        ({"eos_token_id": 3}, {"eos_token_id": 5}, (3,)),
        ({}, {"eos_token_id": 5}, (5,)),
        (None, {"eos_token_id": 5}, (5,)),
        (None, {"eos_token_id": 0}, (0,)),
        ({}, {"eos_token_id": None}, ()),
    ],
)
def test_end_of_text_ids(folder, generation, config, eos):
    path = folder / "generation_config.json"
    path.unlink()
    if generation is not None:
        path.write_text(json.dumps(generation))
    models.edit_json(folder / "config.json", **config)
    assert Text(folder).eos == eos


@pytest.mark.parametrize("eos", ["2", [1, "2"], 1.5, True, {"a": 1}])
def test_end_of_text_ids_must_be_ids(folder, eos):
    models.edit_json(folder / "generation_config.json", eos_token_id=eos)
    with pytest.raises(ValueError) as e:
        Text(folder)
    assert "eos_token_id: expected an id or a list of ids" in str(e.value)
    assert str(folder / "generation_config.json") in str(e.value)


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="prompt: expected at least one token, got ''"):
        Text(TINY).encode("")


def refusal(folder) -> str:
    with pytest.raises(ValueError) as e:
        Text(folder)
    message = str(e.value)
    assert message.startswith("tokenizer: expected") and str(folder) in message
    assert "\n" not in message
    return message


def test_no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    refusal(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_unreadable_tokenizer(folder, content):
    (folder / "tokenizer.json").write_text(content)
    refusal(folder)


def test_a_conversation_goes_through_the_template(folder):
    models.edit_json(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    text = Text(folder)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who's there?"},
        {"role": "assistant", "content": "Nay, answer me."},
        {"role": "user", "content": "Long live the king!"},
    ]
    ids = text.encode_messages(messages)
    assert ids.dtype == np.int32 and ids.shape[0] == 1
    assert text.decode(ids[0]) == (
        "<system>Be brief.<user>Who's there?<assistant>Nay, answer me."
        "<user>Long live the king!<assistant>"
    )
    np.testing.assert_array_equal(text.encode_messages(messages[1:2]), text.encode("Who's there?"))


def test_a_model_without_a_template_takes_no_messages():
    with pytest.raises(ValueError, match="messages: expected a model with a chat template"):
        Text(TINY).encode_messages([{"role": "user", "content": "Hi"}])


def test_what_a_template_refuses_is_refused_in_its_words(folder):
    refuses = "{{ raise_exception('Conversation roles must alternate') }}"
    models.edit_json(folder / "tokenizer_config.json", chat_template=refuses)
    with pytest.raises(ValueError, match=r"messages: expected some that .* roles must alternate"):
        Text(folder).encode_messages([{"role": "user", "content": "Hi"}])


def test_bytes_that_are_no_text_are_refused(folder):
    words = b"caf\xe9".decode("utf-8", "surrogateescape")
    with pytest.raises(ValueError, match="prompt: expected Unicode text"):
        Text(folder).encode(words)
    models.edit_json(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    with pytest.raises(ValueError, match="message: expected Unicode text"):
        Text(folder).encode_messages([{"role": "user", "content": words}])


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_an_unreadable_generation_config_is_refused(folder, content):
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(ValueError, match="generation_config.json: expected"):
        Text(folder)


def test_the_real_models_default_system_message_is_kept(smollm2):
    text = Text(smollm2)
    said = text._tokenizer.decode(text.encode("Hi")[0])
    assert said == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    said = text._tokenizer.decode(text.encode_messages(messages)[0])
    assert said.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")


def stream(text, ids) -> list[str]:
    """A piece for each token, and the last one for what was held back."""
    stream = Stream(text)
    return [*(stream.push(int(i)) for i in ids), stream.finish()]


@pytest.mark.parametrize(
    "words",
    [
        "O, speak again!",
        " two  spaces \n\n",
        "naïve ☂ 語 😀👩‍👧",
        "\ufffd",
        "a\ufffd\ufffdb",
        "e\u0301☂\ufffd",
    ],
)
def test_pieces_are_whole_characters_and_together_the_text(words):
    text = Text(TINY)
    ids = text.encode(words)[0]
    pieces = stream(text, ids)
    assert "".join(pieces) == text.decode(ids)
    # What has come out is what the bytes so far say, but for a character that is not complete.
    known = b"".join(_bytes(text, i) for i in ids)
    for n in range(1, len(ids) + 1):
        out = "".join(pieces[:n]).encode()
        assert known.startswith(out)
        bytes_so_far = b"".join(_bytes(text, i) for i in ids[:n])
        assert bytes_so_far.startswith(out) and len(bytes_so_far) - len(out) <= 3


def _bytes(text, token) -> bytes:
    """The bytes of a token, in byte-level BPE's alphabet: printable ones stand for themselves."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in keep]
    alphabet = {chr(b): b for b in keep} | {chr(256 + i): b for i, b in enumerate(others)}
    return bytes(alphabet[c] for c in text._tokenizer.convert_ids_to_tokens(int(token)))


def test_any_tokens_stream_to_their_text():
    text = Text(TINY)
    rng = np.random.default_rng(0)
    single = [i for i in range(2047) if len(_bytes(text, i)) == 1]  # half characters, mostly
    for ids in (*rng.integers(0, 2048, (40, 12)), *rng.choice(single, (60, 12))):
        pieces = stream(text, ids)
        assert "".join(pieces) == text.decode(ids)


def test_special_tokens_are_not_streamed():
    text = Text(TINY)
    (eos,) = text.eos
    ids = [eos, *text.encode("Exit ☂")[0], eos, *text.encode(" ghost")[0]]
    assert "".join(stream(text, ids)) == "Exit ☂ ghost"
    umbrella = text.encode("☂")[0].tolist()
    assert stream(text, umbrella)[: len(umbrella)] == [""] * (len(umbrella) - 1) + ["☂"]
    assert stream(text, umbrella[:-1])[-1] == "\ufffd"
