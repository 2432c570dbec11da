"""One decode layer on sharded state, end to end, audited.

    python -m experiments.decode_layer --prompt="ROMEO:" --steps=50

Two emulated nodes decode with the packaged tiny model; layer 0 and the next layer's Q/K/V run on
shards, the other layers are unmodified. Cost: half a minute and 1 GB on two cores. A 1.5B model in
f32 takes 14 GB and half a second a step, the unsharded reference beside it included.

Expected: the audit finds 4 reduce-scatters and 2 statistics for the layer, one more of each for the
next layer's Q/K/V, and one all-gather behind them; every parity figure is below 1e-5 in f32.
"""

import functools
import resource
import sys
import time

import jax.numpy as jnp
from absl import flags
from tqdm import tqdm

from fcjax import boundaries, checkpoint, cli, devices, hub, parity
from fcjax.decode import Decoder, Programs, chooser
from fcjax.evidence import RunFolder
from fcjax.model import Interval, Model
from fcjax.ownership import Plan, make_mesh
from fcjax.run import run
from fcjax.text import Text

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "weights/tiny", "Folder with config.json and weights, or a hub id.")
flags.DEFINE_enum("platform", "cpu", ["cpu", "cuda"], "Where the nodes are; cpu emulates them.")
flags.DEFINE_integer("nodes", 2, "Number of nodes that the state is cut over.")
flags.DEFINE_integer("layer", 0, "The layer that runs whole on shards.")
flags.DEFINE_integer("steps", 50, "At most so many decode steps.", lower_bound=1)
flags.DEFINE_string("prompt", "ROMEO:", "Text to go on from; a chat model gets it as a message.")
flags.DEFINE_enum("dtype", "float32", list(parity.BOUND), "Type of weights, state and cache.")
flags.DEFINE_float("temperature", 0.0, "0 decodes greedily, more draws tokens.", lower_bound=0.0)
flags.DEFINE_integer("seed", 0, "Seed of the draws.")
flags.DEFINE_string("workdir", None, "New folder for the evidence. [runs/decode_layer-<time>]")


def main(_):
    devices.use(FLAGS.platform, FLAGS.nodes)
    model_folder = hub.model_folder(FLAGS.model)
    source, text = checkpoint.open_folder(model_folder), Text(model_folder)
    prompt_BT = text.encode(FLAGS.prompt)
    plan, interval = Plan(source.cfg, FLAGS.nodes), Interval(FLAGS.layer)
    model = Model(plan, interval, make_mesh(FLAGS.nodes), jnp.dtype(FLAGS.dtype))
    programs = Programs(model, batch=1, length=prompt_BT.shape[1] + FLAGS.steps)
    workdir = FLAGS.workdir or f"runs/decode_layer-{time.strftime('%Y%m%d-%H%M%S')}"

    print("The interval, and what each node owns behind each operator:\n")
    print(boundaries.table(plan, interval, batch=1, tokens=1))
    held, whole = model.layer_bytes(FLAGS.layer)
    print(
        f"\nA node holds {held / 2**20:.1f} MiB of layer {FLAGS.layer}'s {whole / 2**20:.1f} MiB of"
        f" weights ({held / whole:.4f}; 1/{plan.nodes} is {1 / plan.nodes:.4f})."
    )

    note("Compiling, and auditing the interval's compiled programs")
    for tokens in sorted({prompt_BT.shape[1], 1}):
        print(f"{tokens} token(s) at a time: {programs.prepare(tokens)}")
    if not programs.passed():
        RunFolder(workdir, programs, flag_values(), source.digest).finish({"passed": False})
        print(f"\nThe audit failed; evidence in {workdir}")
        return 1

    note("Loading each node's blocks, and the unsharded reference for the check")
    decoder = Decoder(programs, source.load(model.params()))
    oracle = parity.Oracle(source, interval, batch=1, length=programs.length)
    folder = RunFolder(workdir, programs, flag_values(), source.digest)

    note("Decoding")
    bar = functools.partial(tqdm, total=FLAGS.steps + 1, unit="step", mininterval=1)
    choose = chooser(FLAGS.temperature, FLAGS.seed)
    result = run(decoder, oracle, folder, prompt_BT, FLAGS.steps, choose, text.eos, bar)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    folder.finish(result.to_json() | {"peak_bytes": peak})

    # A random checkpoint's ids are mostly outside the vocabulary of its borrowed tokenizer.
    answer = text.decode(result.tokens[0]) or f"(token ids) {result.tokens[0].tolist()}"
    print(f"\n{FLAGS.prompt}\n  -> {answer}\n")
    print(programs.audits[1].text("audit of the program that ran every step"))
    print(result.text())
    print(
        f"speed:  {result.median_seconds:.3f} s a step (median)\n"
        f"memory: {peak / 2**30:.2f} GiB at its peak, the unsharded reference included"
    )
    print(f"evidence: {workdir}")
    return 0 if result.passed else 1


def flag_values() -> dict:
    """This program's own flags, without absl's."""
    return {flag.name: flag.value for flag in FLAGS.get_key_flags_for_module(sys.argv[0])}


def note(phase: str) -> None:
    print(f"\n== {phase} ==", flush=True)


if __name__ == "__main__":
    cli.run(main)
