"""Text in and out: the tokenizer of a model folder, its chat template and its end-of-text ids."""

import pathlib

import numpy as np

from fcjax import files
from fcjax.text import generation_config

_HALF = "\ufffd"  # what the bytes of a character that is not complete are decoded to


class Text:
    """The tokenizer of a model folder.

    Attributes:
      eos: token ids that end a text.
      chat: whether the folder has a chat template.
    """

    def __init__(self, folder):
        """Raises ValueError if the folder has no tokenizer that transformers can read."""
        # Not AutoTokenizer: it gives every folder of model_type qwen2 Qwen2's own pre-tokenizer,
        # whatever tokenizer.json says.
        from transformers import PreTrainedTokenizerFast  # takes a second to import

        self.folder = pathlib.Path(folder)
        # Without this file transformers makes a tokenizer with no words in it.
        if not (self.folder / "tokenizer.json").is_file():
            raise ValueError(f"tokenizer: expected tokenizer.json, got nothing ({self.folder})")
        try:
            self._tokenizer = PreTrainedTokenizerFast.from_pretrained(
                self.folder, local_files_only=True
            )
        except Exception as e:  # whatever the files make transformers raise
            reason = str(e).splitlines()[0] if str(e) else repr(e)
            raise ValueError(
                f"tokenizer: expected one in the folder, got {reason} ({self.folder})"
            ) from None
        self.chat = self._tokenizer.chat_template is not None
        self.eos = self._eos()

    def _eos(self) -> tuple[int, ...]:
        """From generation_config.json, which may list several ids, else from config.json."""
        for name in (generation_config.FILE, "config.json"):
            path = self.folder / name
            content = files.read_object(path) if path.exists() else {}
            ids = content.get("eos_token_id")
            if ids is None:
                continue
            listed = ids if isinstance(ids, list) else [ids]
            if not all(type(i) is int for i in listed):
                raise ValueError(
                    f"eos_token_id: expected an id or a list of ids, got {ids!r} ({path})"
                )
            return tuple(listed)
        return ()

    def encode(self, prompt: str) -> np.ndarray:
        """Token ids [1, T]; a model with a chat template gets the prompt as a user's message."""
        _check_unicode("prompt", prompt)
        if self.chat and prompt:
            return self.encode_messages([{"role": "user", "content": prompt}])
        ids = self._tokenizer(prompt, verbose=False)["input_ids"] if prompt else []
        if not ids:
            raise ValueError(f"prompt: expected at least one token, got {prompt!r}")
        return np.array([ids], np.int32)

    def encode_messages(self, messages: list[dict[str, str]]) -> np.ndarray:
        """Token ids [1, T] of a conversation, up to where the assistant's next message begins.

        Args:
          messages: each with "role" and "content" (see `fcjax.text.chat`). A template may add a
            system message of its own where there is none.

        Raises:
          ValueError: the model has no chat template, or its template refuses the messages.
        """
        if not self.chat:
            raise ValueError(
                f"messages: expected a model with a chat template, got one without ({self.folder})"
            )
        for message in messages:
            _check_unicode("message", message["content"])
        try:
            # The text first: it has all special tokens that it should have.
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as e:  # whatever the template raises
            raise ValueError(
                f"messages: expected some that the chat template takes, got {e} ({self.folder})"
            ) from None
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if not ids:
            raise ValueError(f"messages: expected at least one token, got {text!r} ({self.folder})")
        return np.array([ids], np.int32)

    def decode(self, ids) -> str:
        """The text of token ids, without special tokens."""
        return self._tokenizer.decode(
            [int(i) for i in ids], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


class Stream:
    """Text of token ids that come one by one: the pieces together are `Text.decode` of all ids.

    A character whose bytes are spread over several tokens is held back until it is complete.
    """

    def __init__(self, text: Text):
        self._text = text
        self._ids: list[int] = []  # whose text is not known to be complete, and one before them
        self._given = ""  # of their text

    def push(self, token: int) -> str:
        """The text that is certain with this token; "" if there is none."""
        self._ids.append(token)
        return self._take(whole=False)

    def finish(self) -> str:
        """What was held back, when no token follows."""
        return self._take(whole=True)

    def _take(self, whole: bool) -> str:
        text = self._text.decode(self._ids)
        # Bytes that are no text are decoded to one such character for each broken beginning, so at
        # most the last one can still become another.
        certain = text if whole else text.removesuffix(_HALF)
        piece = certain[len(self._given) :]
        self._given += piece
        if self._given == text:
            # Some tokenizers write a word's first token without its space at the start of a text,
            # so one token stays as the start.
            self._ids = self._ids[-1:]
            self._given = self._text.decode(self._ids)
        return piece


def _check_unicode(what: str, text: str) -> None:
    """Bytes of a command line that are not UTF-8 arrive as code points that are no characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what}: expected Unicode text, got {text!r}") from None
