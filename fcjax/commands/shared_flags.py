"""Flags that more than one program has; a program's `define_flags` calls those that it takes."""

import importlib.util
import os

from absl import flags

from fcjax.decode import aot, parity
from fcjax.model.config import QWEN25, ModelConfig
from fcjax.sharded.sampling import Sampling

FLAGS = flags.FLAGS
TINY = "weights/tiny"  # comes with a clone, and is not installed
flags.disclaim_key_flags()  # a flag is the program's that asked for it


def model() -> None:
    _model("Folder with config.json and weights, or a hub id.")


def model_path() -> str:
    """The value of --model.

    Raises:
      ValueError: none was given, and there is no default.
    """
    if FLAGS.model is None:
        raise ValueError(f"model: expected --model, as there is no {TINY} here, got none")
    return FLAGS.model


def sizes() -> None:
    """--model of a program that needs no weights."""
    _model(f"Folder with config.json, or {', '.join(QWEN25)}.")


def config() -> ModelConfig:
    """The sizes that --model names; errors as `model_path` and `ModelConfig.from_hf` have them."""
    return QWEN25.get(FLAGS.model) or ModelConfig.from_hf(model_path())


def _model(what: str) -> None:
    flags.DEFINE_string("model", TINY if os.path.isdir(TINY) else None, what)


def platform() -> None:
    flags.DEFINE_enum("platform", "cpu", ["cpu", "cuda"], "Where the nodes are; cpu emulates them.")


def nodes(default=2, what="Number of nodes that the state is cut over.") -> None:
    flags.DEFINE_integer("nodes", default, what)


def layer() -> None:
    flags.DEFINE_integer("layer", 0, "The first layer that runs whole on shards.")


def depth(default: str) -> None:
    what = "How many layers in a row run on shards; all for the whole model."
    flags.DEFINE_string("depth", default, what)


def numbers_of_nodes(without: str = "") -> None:
    """--nodes as a list.

    Args:
      without: what it is if it is not given; otherwise it has a default.
    """
    default = None if without else "2,3,4,5,6,7,8,12"
    flags.DEFINE_list("nodes", default, f"Numbers of nodes. {without}".strip())


def depths(without: str = "") -> None:
    """--depths as a list; `without` as `numbers_of_nodes` has it."""
    default = None if without else "1,2,4,all"
    what = f"How many layers in a row run on shards, or all for the whole model. {without}".strip()
    flags.DEFINE_list("depths", default, what)


def dtype() -> None:
    flags.DEFINE_enum("dtype", "float32", list(parity.BOUND), "Type of weights, state and cache.")


def sampling(model_decides: bool = False) -> None:
    """How a token is chosen.

    Args:
      model_decides: a flag that is not given is None, for the model folder to say.
    """
    least = None if model_decides else 0
    for define, name, value, what, bound in (
        (flags.DEFINE_float, "temperature", 0.0, "0 decodes greedily, more draws tokens.", least),
        (flags.DEFINE_integer, "top_k", 0, "Draw among the k likeliest; 0 for all.", least),
        (flags.DEFINE_float, "top_p", 1.0, "Draw among the likeliest of this mass.", None),
        (flags.DEFINE_float, "repetition_penalty", 1.0, "Above 1 repeats less.", None),
    ):
        if model_decides:
            value, what = None, f"{what} [the model's, or {value:g}]"
        define(name, value, what, bound)


def choice() -> Sampling:
    """What the flags of `sampling` say."""
    return Sampling(FLAGS.temperature, FLAGS.top_k, FLAGS.top_p, FLAGS.repetition_penalty)


def seed() -> None:
    flags.DEFINE_integer("seed", 0, "Seed of the draws.", 0, 2**32 - 1)


def steps(default=50, least=1) -> None:
    flags.DEFINE_integer("steps", default, "Decode steps.", least)


def prompt(default: str) -> None:
    flags.DEFINE_string("prompt", default, "Text to go on from; a chat model gets it as a message.")


def prompts(what: str) -> None:
    flags.DEFINE_multi_string("prompt", None, what)


def topology() -> None:
    known = ", ".join(aot.TOPOLOGIES)
    flags.DEFINE_string("topology", None, f"GPUs to compile for: {known}, ...")


def workdir(what: str) -> None:
    flags.DEFINE_string("workdir", None, what)


def need(package: str, extra: str) -> None:
    """Refuse before the work what would end in an ImportError after it.

    Raises:
      ValueError: the package is not installed; the extra that brings it is named.
    """
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"{package}: expected it installed (fcjax[{extra}]), got no such package")
