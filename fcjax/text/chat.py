"""Conversations: messages from a JSON file, and one that grows line by line."""

import json

from fcjax import files
from fcjax.text.tokenizer import Text

ROLES = ("system", "user", "assistant")


def read_messages(path) -> list[list[dict[str, str]]]:
    """The conversations in a JSON file: a list of messages, or a list of such lists.

    A message is {"role": one of `ROLES`, "content": text}; the last one is the user's, as the
    model's answer follows it.

    Raises:
      ValueError: the file cannot be read or is not JSON, or a conversation is not like that.
    """
    content = files.read_json(path)
    if not isinstance(content, list) or not content:
        raise ValueError(f"messages: expected a list of messages, got {_short(content)} ({path})")
    several = isinstance(content[0], list)
    conversations = content if several else [content]
    for row, messages in enumerate(conversations):
        check(messages, f"{path}, conversation {row}" if several else str(path))
    return conversations


def check(messages, where: str) -> None:
    """Raise ValueError unless these are messages that end with the user's."""
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages: expected a list of messages, got {_short(messages)} ({where})")
    for i, message in enumerate(messages):
        at = f"{where}, message {i}"
        if not isinstance(message, dict) or message.keys() != {"role", "content"}:
            raise ValueError(f"message: expected role and content, got {_short(message)} ({at})")
        if message["role"] not in ROLES:
            raise ValueError(
                f"role: expected one of {', '.join(ROLES)}, got {message['role']!r} ({at})"
            )
        if not isinstance(message["content"], str):
            raise ValueError(f"content: expected text, got {_short(message['content'])} ({at})")
    last = messages[-1]
    if last["role"] != "user":
        raise ValueError(
            f"messages: expected the last one to be the user's, got {last['role']}'s ({where})"
        )
    if not last["content"]:
        raise ValueError(f"content: expected at least one token, got '' ({where}, the last one)")


def with_system(messages: list[dict[str, str]], system: str | None) -> list[dict[str, str]]:
    """The messages after a system message, if there is one to be put first.

    Raises:
      ValueError: they begin with one already.
    """
    if system is None:
        return messages
    if messages and messages[0]["role"] == "system":
        raise ValueError("system: expected one system message, got --system and one in the file")
    return [{"role": "system", "content": system}, *messages]


class Conversation:
    """What was said so far. A model without a chat template goes on from the text of all lines."""

    def __init__(self, text: Text, system: str | None = None):
        """
        Raises:
          ValueError: there is a system message, and the model has no chat template.
        """
        if system is not None and not text.chat:
            raise ValueError(
                f"system: expected a model with a chat template, got one without ({text.folder})"
            )
        self._text, self._system = text, system
        self.reset()

    def reset(self) -> None:
        """Forget what was said."""
        self._said: list[str] = []  # the user's and the model's, in turn

    def ask(self, line: str):
        """Token ids [T] of the conversation with this line after it; it is not kept yet."""
        said = [*self._said, line]
        if not self._text.chat:
            return self._text.encode("".join(said))[0]
        messages = [
            {"role": ("user", "assistant")[i % 2], "content": words} for i, words in enumerate(said)
        ]
        return self._text.encode_messages(with_system(messages, self._system))[0]

    def keep(self, line: str, answer: str) -> None:
        """Add a line and its answer."""
        self._said += [line, answer]


def _short(content) -> str:
    """A JSON value in an error message."""
    said = json.dumps(content)
    return said if len(said) <= 60 else f"{said[:57]}..."
