"""The tokenizer of a GGUF file, as files that transformers loads.

Byte-level BPE only (`tokenizer.ggml.model` "gpt2"). GGUF names the way in which a text is cut up
before the merges; three such ways are implemented.

Load the result with `transformers.PreTrainedTokenizerFast`, which takes tokenizer.json as it is.
`AutoTokenizer` (5.24) gives every folder of model type qwen2 the pre-tokenizer of Qwen2, whatever
its files say: for a SmolLM2 folder, that is another encoding of ")\\n".
"""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from fcjax.model.config import ModelConfig
from weights.gguf_meta import Meta
from weights.tiny_tokenizer import SPLIT as QWEN2_SPLIT

_CONTROL, _USER_DEFINED = 3, 4  # of llama.cpp's enum llama_token_type
_NAMES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
PRE_TOKENIZERS = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    # Digits first, as llama.cpp has it (LLAMA_VOCAB_PRE_TYPE_SMOLLM). transformers 5.24 leaves that
    # step out when it reads a GGUF file, and so cuts two spaces before a digit in another way.
    "smollm": lambda: pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]),
    "qwen2": lambda: pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]),
}


def token_ids(meta: Meta) -> dict[str, int | list[int]]:
    """The "bos_token_id", "eos_token_id" and "pad_token_id" that the file states.

    An answer ends at the end of a turn, too, where the file names a token for that.
    """
    count = len(meta.get("tokenizer.ggml.tokens", list) or ())
    ids = {}
    for name in ("bos", "eos", "pad", "eot"):
        key = f"tokenizer.ggml.{_NAMES.get(name, name)}_token_id"
        value = meta.get(key, int, None)
        if value is not None and value >= count:
            meta.faults.append(f"{key}: expected an id below {count}, got {value}")
        ids[name] = value
    if ids["eos"] is None:
        meta.faults.append("tokenizer.ggml.eos_token_id: expected int, got nothing")
    meta.check()
    ends = list(dict.fromkeys(i for i in (ids["eos"], ids["eot"]) if i is not None))
    ids["eos"] = ends[0] if len(ends) == 1 else ends
    return {f"{n}_token_id": ids[n] for n in ("bos", "eos", "pad") if ids[n] is not None}


def tokenizer(meta: Meta) -> Tokenizer:
    """The tokenizer itself.

    Raises:
      ValueError: the file's tokenizer is of a kind not implemented here, or damaged.
    """
    meta.only("tokenizer.ggml.model", "gpt2")
    pre = meta.get("tokenizer.ggml.pre", str)
    meta.only("tokenizer.ggml.pre", *PRE_TOKENIZERS)
    meta.only("tokenizer.ggml.add_bos_token", False)
    meta.only("tokenizer.ggml.add_eos_token", False)
    meta.only("tokenizer.ggml.add_space_prefix", False)
    tokens = meta.get("tokenizer.ggml.tokens", list)
    merges = meta.get("tokenizer.ggml.merges", list)
    types = meta.get("tokenizer.ggml.token_type", list)
    meta.check()
    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if len(types) != len(tokens) or len(vocab) != len(tokens):
        raise ValueError(
            f"tokenizer: expected one type and one spelling a token, got {len(tokens)} tokens with"
            f" {len(vocab)} spellings and {len(types)} types ({meta.path})"
        )
    for pair in pairs:
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocab.keys():
            raise ValueError(
                f"tokenizer: expected merges of two tokens to a third, got {pair} ({meta.path})"
            )
    result = Tokenizer(models.BPE(vocab, pairs))
    if pre == "qwen2":
        result.normalizer = normalizers.NFC()
    result.pre_tokenizer = PRE_TOKENIZERS[pre]()
    result.decoder = decoders.ByteLevel()
    marked = [(t, k) for t, k in zip(tokens, types, strict=True) if k in (_CONTROL, _USER_DEFINED)]
    # One call in the order of the ids: each is in the vocabulary already, and keeps its id there.
    result.add_tokens([AddedToken(t, special=k == _CONTROL, normalized=False) for t, k in marked])
    return result


def files(meta: Meta, cfg: ModelConfig) -> dict[str, str]:
    """tokenizer.json and tokenizer_config.json, with the chat template where the file has one."""
    result = tokenizer(meta)
    tokens = meta.values["tokenizer.ggml.tokens"]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": cfg.max_len,
    }
    for name, key in _NAMES.items():
        index = meta.get(f"tokenizer.ggml.{key}_token_id", int, None)
        if index is not None and index < len(tokens):
            config[f"{name}_token"] = tokens[index]
    template = meta.get("tokenizer.chat_template", str, None)
    meta.check()
    if template is not None:
        config["chat_template"] = template
    return {
        "tokenizer.json": result.to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
    }
