"""What a step costs beside its peers, all of them timed in this one run.

    python -m experiments.benchmark --model=models/qwen2.5-1.5b-random

Cost at 1.5B: 20 GB of memory (three copies of the weights) and about ten minutes. The packaged tiny
model takes seconds but says nothing about speed, since it fits in the cache. Expected at 1.5B on
two cores: a sharded layer within 1.15 x the unsharded one, and the decode with one audited layer no
slower than transformers on torch in f32.
"""

import importlib.util
import statistics

from absl import flags

from fcjax import benchmark, checkpoint, cli, devices, hub
from fcjax.decode import Decoder, Programs
from fcjax.model import Interval, Model
from fcjax.ownership import Plan, make_mesh

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "weights/tiny", "Folder with config.json and weights, or a hub id.")
flags.DEFINE_enum("platform", "cpu", ["cpu", "cuda"], "Where the nodes are; cpu emulates them.")
flags.DEFINE_integer("nodes", 2, "Number of nodes that the state is cut over.")
flags.DEFINE_integer("layer", 0, "The layer that runs whole on shards.")
flags.DEFINE_integer("context", 128, "Tokens in the caches when a step is timed.", lower_bound=1)
flags.DEFINE_integer("rounds", 9, "Counted rounds.", lower_bound=1)
flags.DEFINE_bool("torch", True, "Time transformers on torch too, if it is installed.")


def main(_):
    devices.use(FLAGS.platform, FLAGS.nodes)
    folder = hub.model_folder(FLAGS.model)
    source = checkpoint.open_folder(folder)
    layer, length = FLAGS.layer, FLAGS.context + 1
    model = Model(Plan(source.cfg, FLAGS.nodes), Interval(layer), make_mesh(FLAGS.nodes))
    programs = Programs(model, batch=1, length=length)
    print(programs.prepare(1).text("audit of the interval that is timed"), flush=True)
    params = source.load(model.params())
    unsharded = benchmark.Unsharded(source, length)
    read, size = benchmark.bandwidth_reader(model.mesh)

    unmodified = next(i for i in range(source.cfg.L) if i not in (layer, layer + 1))
    layers = {
        "unsharded Flax layer": unsharded.layer_step(layer),
        "sharded layer": benchmark.layer_step(model, params, layer, length),
        "tensor parallel layer": benchmark.layer_step(model, params, unmodified, length),
    }
    print(f"\n{FLAGS.nodes} nodes, one token, {FLAGS.context} tokens in the cache, f32, {folder}\n")
    seconds = benchmark.take_turns(layers, FLAGS.rounds, calls=10)
    print(benchmark.table("layer step", seconds, "unsharded Flax layer"), flush=True)

    steps = {
        "unsharded Flax": unsharded.decode_step(),
        "tensor parallel, one audited layer": benchmark.decode_step(Decoder(programs, params)),
    }
    if FLAGS.torch and importlib.util.find_spec("torch"):
        steps["transformers on torch"] = benchmark.torch_step(folder, length)
    steps["(reading memory once)"] = read
    seconds = benchmark.take_turns(steps, FLAGS.rounds)
    rate = size / statistics.median(seconds.pop("(reading memory once)"))
    floor = benchmark.step_bytes(source.cfg, length)
    print("\n" + benchmark.table("decode step", seconds, "unsharded Flax"))
    print(
        f"  floor: {floor / 1e9:.2f} GB of weights and cache at {rate / 1e9:.1f} GB/s, measured in"
        f" the same rounds: {1e3 * floor / rate:.1f} ms"
    )


if __name__ == "__main__":
    cli.run(main)
