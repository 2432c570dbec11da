"""The same decode with more and more layers in a row on shards: one axis, the depth.

    python -m experiments.depth_sweep --depths=1,2,3,4,5,all

Every pass is compared with the unsharded reference; the audited bytes are compared with the plan's
formula. Cost: a minute for the packaged tiny model. Expected: every audit clean, parity below 1e-5,
one text for all; bytes grow by the same amount with each layer, and with all of them by the head.
Exit code 1 if any of that fails.
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
flags.DEFINE_integer("nodes", 2, "Number of nodes that the state is cut over.")
flags.DEFINE_list(
    "depths", "1,2,3,4,5,all", "How many layers in a row, from layer 0, run on shards."
)
flags.DEFINE_integer("steps", 50, "Decode steps of each setting.", lower_bound=2)
flags.DEFINE_string("prompt", "ROMEO:\n", "Text to go on from; a chat model gets it as a message.")
flags.DEFINE_string("workdir", None, "New folder for the figures. [runs/depth_sweep-<time>]")


def main(_):
    use_platform("cpu", FLAGS.nodes)
    folder = hub.model_folder(FLAGS.model)
    source = checkpoint.open_folder(folder)
    intervals = [Interval(0, cli.depth(depth, source.cfg.L)) for depth in FLAGS.depths]
    plan, mesh = Plan(source.cfg, FLAGS.nodes), make_mesh(FLAGS.nodes)
    models = [Layout(ShardedModel(plan, interval), mesh) for interval in intervals]
    prompt_T = Text(folder).encode(FLAGS.prompt)[0]
    points = []
    for point in sweep.points(models, source, prompt_T, FLAGS.steps):
        points.append(point)
        print(sweep.table(points).splitlines()[-1], flush=True)
    title = f"{FLAGS.model}, {FLAGS.nodes} nodes: {FLAGS.steps} steps at each depth"
    print(f"\n{title}\n{sweep.table(points)}")
    workdir = FLAGS.workdir or f"runs/depth_sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    sweep.write(workdir, "depth", title, points)
    print(f"figures: {workdir}")
    return 0 if sweep.passed(points) else 1


if __name__ == "__main__":
    cli.run(main)
