"""Text in and out: the tokenizer of a model folder, its chat template and its end-of-text ids."""

import json
import pathlib

import numpy as np


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
        for name in ("generation_config.json", "config.json"):
            path = self.folder / name
            ids = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
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
        if self.chat:
            prompt = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
        ids = self._tokenizer(prompt, add_special_tokens=not self.chat)["input_ids"]
        if not ids:
            raise ValueError(f"prompt: expected at least one token, got {prompt!r}")
        return np.array([ids], np.int32)

    def decode(self, ids) -> str:
        """The text of token ids, without special tokens."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)
