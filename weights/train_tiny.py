"""Train the small Qwen2.5-architecture model that is packaged in weights/tiny.

    python -m weights.train_tiny --text=FILE --out=DIR

FILE is a text of a megabyte or so. The first nine tenths train a byte-level BPE tokenizer of 2048
ids and a model of 2.8 M parameters (6 layers, 2 KV groups of 3 query heads, tied embeddings); the
last tenth is held out, and the parameters with the lowest loss on it are the ones that are kept.
DIR becomes a Hugging Face folder of 6 MB in bf16, with training.json (settings and losses) and a
README.md (final loss, a sample, the command).

Cost: about 12 minutes on 2 cores. Expected on Shakespeare: held-out loss 4.15 nats a token (1.48 a
character), and a sample that reads like a page of the plays.
"""

import jax
from absl import flags

from fcjax import cli
from weights import tiny_model

_TEXT = flags.DEFINE_string("text", None, "UTF-8 text file to learn", required=True)
_OUT = flags.DEFINE_string("out", None, "folder to write; must not exist", required=True)
_STEPS = flags.DEFINE_integer("steps", 1000, "optimizer steps", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 8, "windows in a step", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "seed of the parameters, the windows and the sample")


def main(argv):
    del argv
    # A transfer or promotion that nobody wrote down is a fault in a training loop, too.
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    settings = tiny_model.Schedule(steps=_STEPS.value, batch=_BATCH.value, seed=_SEED.value)
    tiny_model.build(_TEXT.value, _OUT.value, settings)


if __name__ == "__main__":
    cli.run(main)
