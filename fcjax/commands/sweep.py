"""The same decode over more and more nodes: one axis, the number of nodes.

    python -m experiments.node_sweep --nodes=2,3,4,5,6,7,8,12

Every pass is compared with the unsharded reference; the audited bytes are compared with the plan's
formula. Cost: a minute for the packaged tiny model. Expected: every audit clean, parity below 1e-5,
one text for all; bytes a node grow as (N - 1) / N. Emulated nodes share two cores, so step times
grow with N. Exit code 1 if any of that fails.
"""

import time

from absl import flags

from fcjax import cli, hub
from fcjax.bench import sweep
from fcjax.mesh import make_mesh, use_platform
from fcjax.model import checkpoint
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from fcjax.text.tokenizer import Text

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "weights/tiny", "Folder with config.json and weights, or a hub id.")
flags.DEFINE_list("nodes", "2,3,4,5,6,7,8,12", "Numbers of nodes.")
flags.DEFINE_integer("layer", 0, "The first layer that runs whole on shards.")
flags.DEFINE_string("depth", "all", "How many layers in a row run on shards; all for the model.")
flags.DEFINE_integer("steps", 50, "Decode steps of each setting.", lower_bound=2)
flags.DEFINE_string("prompt", "ROMEO:\n", "Text to go on from; a chat model gets it as a message.")
flags.DEFINE_string("workdir", None, "New folder for the figures. [runs/node_sweep-<time>]")


def main(_):
    every = cli.numbers("nodes", FLAGS.nodes)
    use_platform("cpu", max(every))
    folder = hub.model_folder(FLAGS.model)
    source = checkpoint.open_folder(folder)
    depth = cli.depth(FLAGS.depth, source.cfg.L)
    interval = Interval(FLAGS.layer, depth)
    models = [Layout(ShardedModel(Plan(source.cfg, n), interval), make_mesh(n)) for n in every]
    prompt_T = Text(folder).encode(FLAGS.prompt)[0]
    points = []
    for point in sweep.points(models, source, prompt_T, FLAGS.steps):
        points.append(point)
        print(sweep.table(points).splitlines()[-1], flush=True)
    title = f"{FLAGS.model}, depth {depth} of {source.cfg.L}: {FLAGS.steps} steps over N nodes"
    print(f"\n{title}\n{sweep.table(points)}")
    workdir = FLAGS.workdir or f"runs/node_sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    sweep.write(workdir, "nodes", title, points)
    print(f"figures: {workdir}")
    return 0 if sweep.passed(points) else 1


if __name__ == "__main__":
    cli.run(main)
