"""Make up a checkpoint of any Qwen2.5 size: a Hugging Face folder that needs no download.

    python -m weights.random_checkpoint --size=1.5b --out=models/qwen2.5-1.5b-random

The folder has the true sizes, names, types (bf16) and, above 2 GB, shards with an index. Its
numbers are random, but the same for the same --seed, and scaled so that a forward pass looks like
that of a trained model: residual of order one through all layers, biases and norm gains that differ
from zero and one, logits that prefer some tokens.

The true vocabulary is not to be had offline, so the folder carries the tokenizer of --tokenizer,
whose ids are all below V. Prompts work; an answer is made of any of the V ids, and those that the
tokenizer does not know decode to nothing.

Cost: 1.5b takes half a minute, 3.1 GB of disk, and 4 GB of memory. Expected: one line with the
number of parameters and the digest.
"""

import math
import pathlib

from absl import flags

from fcjax import cli
from fcjax.model import convert
from fcjax.model.config import QWEN25
from weights import random_model

_SIZE = flags.DEFINE_enum("size", "1.5b", list(QWEN25), "size of the model")
_OUT = flags.DEFINE_string("out", None, "folder to write; must not exist", required=True)
_SEED = flags.DEFINE_integer("seed", 0, "seed of all numbers", lower_bound=0)
_TOKENIZER = flags.DEFINE_string(
    "tokenizer",
    str(pathlib.Path(__file__).parent / "tiny"),
    "model folder whose tokenizer is copied",
)


def main(argv):
    del argv
    cfg = QWEN25[_SIZE.value]
    digest = random_model.make(cfg, _OUT.value, _SEED.value, _TOKENIZER.value)
    count = sum(math.prod(shape) for shape in convert.hf_shapes(cfg).values())
    print(f"{count} random parameters -> {_OUT.value} (manifest {digest[:12]})")


if __name__ == "__main__":
    cli.run(main)
