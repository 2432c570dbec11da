"""Text in and out, with the packaged model's tokenizer."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from fcjax.text import Text
from tests import models

TINY = pathlib.Path(__file__).parents[1] / "weights" / "tiny"
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
