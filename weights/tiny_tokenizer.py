"""Train a small byte-level BPE tokenizer that splits text as Qwen2's does."""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

EOS = "<|endoftext|>"
# Words with their leading space, single digits, punctuation with the line ends behind it, spaces:
# the pattern of Qwen/Qwen2.5's tokenizer.json.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(text: str, vocab: int) -> Tokenizer:
    """A tokenizer of exactly `vocab` ids: 256 bytes, merges learnt from `text`, and EOS, the last.

    Every byte has an id, so any text can be encoded and comes back unchanged (up to Unicode NFC).
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.add_special_tokens([AddedToken(EOS, special=True, normalized=False)])
    if tokenizer.get_vocab_size() != vocab:
        raise ValueError(
            f"tokenizer: expected text with enough words for {vocab} ids,"
            f" got {tokenizer.get_vocab_size()}"
        )
    return tokenizer


def files(tokenizer: Tokenizer, max_len: int) -> dict[str, str]:
    """The files of a model folder from which `transformers.AutoTokenizer` loads the tokenizer."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": EOS,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_len,
    }
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
    }
