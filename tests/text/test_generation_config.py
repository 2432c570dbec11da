"""generation_config.json: what it says, what the user says, and what is said about the rest."""

import json

import pytest
from transformers import GenerationConfig

from fcjax.sharded.sampling import Sampling
from fcjax.text.generation_config import settings

# As Qwen/Qwen2.5-1.5B-Instruct publishes it.
QWEN = {
    "bos_token_id": 151643, "pad_token_id": 151643, "do_sample": True,
    "eos_token_id": [151645, 151643], "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8,
    "top_k": 20, "transformers_version": "4.37.0",
}


@pytest.fixture
def read(tmp_path):
    def read(content=None, **given):
        path = tmp_path / "generation_config.json"
        if content is not None:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return settings(tmp_path, **given)

    return read


@pytest.mark.parametrize(
    ("file", "given", "expected"),
    [
        (None, {}, Sampling()),
        ({}, {}, Sampling()),
        (QWEN, {}, Sampling(0.7, 20, 0.8, 1.1)),
        (QWEN, {"temperature": 0.0}, Sampling(repetition_penalty=1.1)),
        (QWEN, {"temperature": 1.5}, Sampling(1.5, 20, 0.8, 1.1)),
        (QWEN, {"repetition_penalty": 1.0}, Sampling(0.7, 20, 0.8)),
        (QWEN, {"top_k": 0, "top_p": 1.0}, Sampling(0.7, 0, 1.0, 1.1)),
        (QWEN | {"do_sample": False}, {}, Sampling(repetition_penalty=1.1)),
        (QWEN | {"do_sample": None}, {}, Sampling(repetition_penalty=1.1)),
        (QWEN | {"do_sample": False}, {"temperature": 0.5}, Sampling(0.5, 20, 0.8, 1.1)),
        ({"temperature": 0.6, "top_p": 0.9}, {}, Sampling()),
        ({"do_sample": True, "temperature": 0}, {}, Sampling()),
        ({"do_sample": True, "temperature": 0.6, "top_k": None}, {}, Sampling(0.6, 50)),
        ({"do_sample": True}, {}, Sampling(1.0, 50)),
        (None, {"temperature": 1.0}, Sampling(1.0)),
        (None, {"temperature": 1.0, "top_k": 5, "top_p": 0.5}, Sampling(1.0, 5, 0.5)),
        (None, {"top_k": 5}, Sampling()),
    ],
)
def test_the_user_wins_over_the_file_and_the_file_over_the_defaults(read, file, given, expected):
    assert read(file, **given).sampling == expected


def test_defaults_beside_do_sample_are_those_of_transformers(read):
    theirs = GenerationConfig._get_default_generation_params()
    assert read({"do_sample": True}).sampling == Sampling(
        theirs["temperature"], theirs["top_k"], theirs["top_p"]
    )


def test_what_is_not_applied_is_said(read):
    assert read(QWEN).notes == ()
    (note,) = read(QWEN | {"no_repeat_ngram_size": 3}).notes
    assert note.startswith("no_repeat_ngram_size: 3 is not applied")
    notes = read({"num_beams": 4, "bad_words_ids": [[5]], "min_new_tokens": 3, "new_key": 1}).notes
    assert [n.split(":")[0] for n in notes] == [
        "bad_words_ids", "min_new_tokens", "new_key", "num_beams",
    ]
    (note,) = read({}, top_k=5).notes
    assert "--top_k has no effect" in note
    assert read({}, temperature=0.0).notes == read({}, temperature=0.5, top_k=5).notes == ()


def test_values_that_change_nothing_are_not_worth_a_note(read):
    theirs = GenerationConfig._get_default_generation_params() | {"max_length": None}
    assert read(theirs).notes == ()
    assert read(GenerationConfig().to_dict()).notes == ()
    assert read(QWEN | {"num_beams": 1, "bad_words_ids": []}).notes == ()


def test_how_many_tokens(read):
    assert read({}).max_new_tokens is None
    assert read({"max_new_tokens": 2048}).max_new_tokens == 2048


def test_in_words(read):
    assert (
        read(QWEN).words() == "draws: temperature 0.7, top_k 20, top_p 0.8; repetition penalty 1.1"
    )
    assert read({}).words().startswith("greedy")


@pytest.mark.parametrize(
    ("file", "given", "words"),
    [
        ("", {}, "generation_config.json: expected JSON"),
        ("{", {}, "generation_config.json: expected JSON"),
        ("[]", {}, "generation_config.json: expected a JSON object, got list"),
        ({"do_sample": "yes"}, {}, "do_sample: expected true or false, got 'yes'"),
        ({"temperature": "hot"}, {}, "temperature: expected a number, got 'hot'"),
        ({"temperature": True}, {}, "temperature: expected a number, got True"),
        ('{"temperature": NaN}', {}, "temperature: expected a number, got nan"),
        ({"top_k": 1.5}, {}, "top_k: expected a whole number, got 1.5"),
        ({"top_p": [1]}, {}, "top_p: expected a number, got [1]"),
        ({"max_new_tokens": 0}, {}, "max_new_tokens: expected a whole number above 0, got 0"),
        ({"do_sample": True, "top_p": 0}, {}, "top_p: expected more than 0 and at most 1, got 0"),
        ({"do_sample": True, "temperature": -1}, {}, "temperature: expected 0 to 1e+30, got -1"),
        ({"repetition_penalty": 0}, {}, "repetition_penalty: expected more than 0, got 0"),
        ({}, {"repetition_penalty": -1.0}, "got -1.0 (--repetition_penalty)"),
        ({}, {"temperature": -1.0}, "got -1.0 (--temperature)"),
        ({}, {"top_k": -1}, "top_k: expected 0 (all tokens) or more, got -1 (--top_k)"),
        ({}, {"top_p": 1.5}, "top_p: expected more than 0 and at most 1, got 1.5 (--top_p)"),
        ({}, {"temperature": 0.0, "top_p": 0.0}, "(--top_p)"),
    ],
)
def test_values_that_mean_nothing_are_refused(read, tmp_path, file, given, words):
    with pytest.raises(ValueError) as e:
        read(file, **given)
    message = str(e.value)
    assert words in message and "\n" not in message
    assert given or str(tmp_path) in message
