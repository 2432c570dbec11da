"""Conversations: what a file of messages may be, and what is refused."""

import json
import pathlib

import numpy as np
import pytest

from fcjax.text.chat import Conversation, read_messages, with_system
from fcjax.text.tokenizer import Text

TINY = pathlib.Path(__file__).parents[2] / "weights" / "tiny"


def said(role, content):
    return {"role": role, "content": content}


HELLO = [said("user", "Hello")]
LONGER = [said("system", ""), *HELLO, said("assistant", "Hi."), said("user", "Bye")]


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "messages.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_one_conversation_or_several(file):
    assert read_messages(file(HELLO)) == [HELLO]
    assert read_messages(file(LONGER)) == [LONGER]
    assert read_messages(file([LONGER, HELLO])) == [LONGER, HELLO]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "expected JSON"),
        ("{", "expected JSON"),
        ("Hello", "expected JSON"),
        ("null", "messages: expected a list of messages, got null"),
        ({"messages": HELLO}, 'messages: expected a list of messages, got {"messages"'),
        ([], "messages: expected a list of messages, got []"),
        ([[]], "messages: expected a list of messages, got []"),
        ([HELLO, []], "conversation 1"),
        ([HELLO, HELLO[0]], "messages: expected a list of messages, got {"),
        ([*HELLO, HELLO], "message: expected role and content, got [{"),
        (["Hello"], 'message: expected role and content, got "Hello"'),
        ([{"role": "user"}], 'message: expected role and content, got {"role": "user"}'),
        ([{**HELLO[0], "name": "x"}], "message: expected role and content, got {"),
        ([said("robot", "Hi")], "role: expected one of system, user, assistant, got 'robot'"),
        ([said(["user"], "Hi")], "role: expected one of"),
        ([said("tool", "1"), *HELLO], "message 0"),
        ([said("user", None)], "content: expected text, got null"),
        ([said("user", [{"type": "text"}])], "content: expected text, got [{"),
        ([*HELLO, said("assistant", "Hi")], "the last one to be the user's, got assistant's"),
        ([said("system", "Hi")], "the last one to be the user's, got system's"),
        ([said("user", "")], "content: expected at least one token, got ''"),
        ([HELLO, [said("user", "")]], "conversation 1, the last one"),
    ],
)
def test_anything_else_is_refused_in_one_line(file, content, words):
    path = file(content)
    with pytest.raises(ValueError) as e:
        read_messages(path)
    message = str(e.value)
    assert words in message and str(path) in message and "\n" not in message


def test_no_file_and_no_text(tmp_path):
    with pytest.raises(ValueError, match="no.json: expected JSON, got .*no.json"):
        read_messages(tmp_path / "no.json")
    (tmp_path / "binary.json").write_bytes(b"[\xff]")
    with pytest.raises(ValueError, match="expected JSON"):
        read_messages(tmp_path / "binary.json")


def test_one_system_message():
    assert with_system(HELLO, None) == HELLO
    assert with_system(HELLO, "Be brief.") == [said("system", "Be brief."), *HELLO]
    with pytest.raises(ValueError, match="system: expected one system message"):
        with_system(LONGER, "Be brief.")


def test_a_conversation_grows_only_by_what_is_kept(smollm2):
    text = Text(smollm2)
    talk = Conversation(text, "Be brief.")
    first = talk.ask("Hello")
    np.testing.assert_array_equal(talk.ask("Hello"), first)
    talk.keep("Hello", "Hi.")
    messages = [said("system", "Be brief."), *LONGER[1:]]
    np.testing.assert_array_equal(talk.ask("Bye"), text.encode_messages(messages)[0])
    talk.reset()
    np.testing.assert_array_equal(talk.ask("Hello"), first)


def test_a_plain_model_goes_on_from_all_lines():
    text = Text(TINY)
    talk = Conversation(text)
    talk.keep("ROMEO:", " Ay me!")
    np.testing.assert_array_equal(talk.ask("\nJULIET:"), text.encode("ROMEO: Ay me!\nJULIET:")[0])
    with pytest.raises(ValueError, match="system: expected a model with a chat template"):
        Conversation(text, "Be brief.")
