"""How a model's publisher wants its text to be made: generation_config.json of a model folder.

What the user asks for wins over the file, and the file over the defaults. A key that would change
the text and that is not implemented is named in a note, never dropped in silence.
"""

import dataclasses
import math
import pathlib

from fcjax import files
from fcjax.sharded.sampling import Sampling

FILE = "generation_config.json"
# What transformers takes where a file asks for draws and leaves this out.
_TOP_K = 50

_APPLIED = {
    "do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "max_new_tokens",
    "eos_token_id",
}
# Nothing in the text depends on these, whatever they are.
_WITHOUT_EFFECT = {
    "_from_model_config", "assistant_confidence_threshold", "assistant_early_exit",
    "assistant_lookbehind", "bos_token_id", "cache_config", "cache_implementation",
    "compile_config", "decoder_start_token_id", "disable_compile", "early_stopping", "is_assistant",
    "length_penalty", "low_memory", "max_cache_len", "max_matching_ngram_size",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "output_attentions",
    "output_hidden_states", "output_logits", "output_scores", "pad_token_id", "prefill_chunk_size",
    "prompt_lookup_num_tokens", "return_dict_in_generate", "target_lookbehind",
    "transformers_version", "use_cache",
}
# These change nothing if they have this value; so does every key that is null.
_NEUTRAL = {
    "diversity_penalty": 0.0, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "guidance_scale": 1.0, "min_length": 0,
    "min_new_tokens": 0, "min_p": 0.0, "no_repeat_ngram_size": 0, "num_beam_groups": 1,
    "num_beams": 1, "num_return_sequences": 1, "remove_invalid_values": False,
    "renormalize_logits": False, "token_healing": False, "typical_p": 1.0, "use_mtp": False,
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """How text is made.

    Attributes:
      sampling: how the next token is chosen.
      max_new_tokens: of a row, if the file says so.
      notes: what the user should know, a line each.
    """

    sampling: Sampling
    max_new_tokens: int | None
    notes: tuple[str, ...]

    def words(self) -> str:
        """How the next token is chosen, in a line."""
        rule = self.sampling
        words = "greedy: the token with the largest logit"
        if rule.temperature:
            words = f"draws: temperature {rule.temperature}, top_k {rule.top_k}, top_p {rule.top_p}"
        if rule.repetition_penalty != 1:
            words += f"; repetition penalty {rule.repetition_penalty}"
        return words


def settings(
    folder, *, temperature=None, top_k=None, top_p=None, repetition_penalty=None
) -> Settings:
    """What a folder's generation_config.json and the user say together.

    Without the file, or without do_sample in it, tokens are chosen greedily unless the user gives a
    temperature.

    Args:
      folder: of the model.
      temperature: the user's, as `Sampling` has it; so are the others. None: not given.

    Raises:
      ValueError: a value has the wrong type or means nothing.
    """
    path = pathlib.Path(folder) / FILE
    file = _checked(files.read_object(path), path) if path.exists() else {}
    given = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "repetition_penalty": repetition_penalty,
    }
    given = {key: value for key, value in given.items() if value is not None}
    draws = file.get("do_sample", False)
    chosen = {
        "temperature": 1.0,
        "top_k": _TOP_K if draws else 0,
        "top_p": 1.0,
        "repetition_penalty": 1.0,
    }
    chosen |= {key: file[key] for key in chosen if key in file} | given
    if not draws and temperature is None:
        chosen["temperature"] = 0.0
    for key, value in chosen.items():
        where = f"--{key}" if key in given else str(path)
        try:
            Sampling(**{key: value})
        except ValueError as e:
            raise ValueError(f"{e} ({where})") from None
    notes = [
        f"{key}: {file[key]!r} is not applied: not implemented ({path})"
        for key in sorted(file.keys() - _APPLIED - _WITHOUT_EFFECT)
        if not _neutral(key, file[key])
    ]
    if not chosen["temperature"]:
        notes += [
            f"--{key} has no effect: the token with the largest logit is taken; --temperature draws"
            for key in ("top_k", "top_p")
            if key in given
        ]
        chosen |= {"top_k": 0, "top_p": 1.0}
    return Settings(Sampling(**chosen), file.get("max_new_tokens"), tuple(notes))


def _neutral(key: str, value) -> bool:
    """Whether this value of a key that is not implemented leaves the text as it is."""
    if value in (None, [], {}):
        return True
    return type(value) in (bool, int, float) and _NEUTRAL.get(key) == value


def _checked(content: dict, path) -> dict:
    """Without the keys that are null; those that are applied have the right types."""
    content = {key: value for key, value in content.items() if value is not None}
    kinds = {
        "do_sample": ("true or false", lambda x: type(x) is bool),
        "temperature": ("a number", _is_number),
        "top_k": ("a whole number", lambda x: type(x) is int),
        "top_p": ("a number", _is_number),
        "repetition_penalty": ("a number", _is_number),
        "max_new_tokens": ("a whole number above 0", lambda x: type(x) is int and x > 0),
    }
    for key, (expected, fits) in kinds.items():
        if key in content and not fits(content[key]):
            raise ValueError(f"{key}: expected {expected}, got {content[key]!r} ({path})")
    return content


def _is_number(x) -> bool:
    return type(x) in (int, float) and math.isfinite(x)
