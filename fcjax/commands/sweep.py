"""The same decode at several settings of one axis: the depth, or the number of nodes.

--axis=depth has more and more layers in a row on shards, --axis=nodes cuts the state over more and
more nodes; the other stays as it is. Every pass is compared with the unsharded reference, and the
audited bytes with the plan's formula. Figures are drawn with matplotlib. Exit code 1: an audit, a
figure or a text is not as it has to be.
"""

import time

from absl import flags

from fcjax import cli, hub
from fcjax.bench import sweep
from fcjax.commands import shared_flags
from fcjax.mesh import make_mesh, use_platform
from fcjax.model import checkpoint
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from fcjax.text.tokenizer import Text

FLAGS = flags.FLAGS
# For each axis, --nodes and --depths where they are not given.
DEFAULTS = {
    "depth": (["2"], ["1", "2", "3", "4", "5", "all"]),
    "nodes": (["2", "3", "4", "5", "6", "7", "8", "12"], ["all"]),
}


def define_flags():
    shared_flags.model()
    flags.DEFINE_enum("axis", None, list(DEFAULTS), "What is advanced.", required=True)
    shared_flags.numbers_of_nodes("[for --axis=depth 2, otherwise 2 to 8 and 12]")
    shared_flags.depths("[for --axis=depth 1,2,3,4,5,all, otherwise all]")
    shared_flags.layer()
    shared_flags.steps(least=2)
    shared_flags.prompt("ROMEO:\n")
    shared_flags.workdir("New folder for the figures. [runs/AXIS_sweep-<time>]")


def main(_):
    shared_flags.need("matplotlib", "plots")
    nodes, depths = settings()
    use_platform("cpu", max(nodes))
    folder = hub.model_folder(shared_flags.model_path())
    source = checkpoint.open_folder(folder)
    L = source.cfg.L
    intervals = [Interval(FLAGS.layer, cli.depth(depth, L)) for depth in depths]
    layouts = [
        Layout(ShardedModel(Plan(source.cfg, n), i), make_mesh(n)) for n in nodes for i in intervals
    ]
    prompt_T = Text(folder).encode(FLAGS.prompt)[0]
    points = []
    for point in sweep.points(layouts, source, prompt_T, FLAGS.steps):
        points.append(point)
        print(sweep.table(points).splitlines()[-1], flush=True)
    fixed = {
        "depth": f"{nodes[0]} nodes: {FLAGS.steps} steps at each depth",
        "nodes": f"depth {intervals[0].depth} of {L}: {FLAGS.steps} steps over N nodes",
    }
    title = f"{FLAGS.model}, {fixed[FLAGS.axis]}"
    print(f"\n{title}\n{sweep.table(points)}")
    workdir = FLAGS.workdir or f"runs/{FLAGS.axis}_sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    sweep.write(workdir, FLAGS.axis, title, points)
    print(f"figures: {workdir}")
    return 0 if sweep.passed(points) else 1


def settings() -> tuple[list[int], list[str]]:
    """Numbers of nodes, and depths as they are written; of what is no axis, one.

    Raises:
      ValueError: there are more of those, or something is no number.
    """
    nodes, depths = DEFAULTS[FLAGS.axis]
    nodes, depths = FLAGS.nodes or nodes, FLAGS.depths or depths
    name, values = ("nodes", nodes) if FLAGS.axis == "depth" else ("depths", depths)
    if len(values) != 1:
        raise ValueError(f"{name}: expected one, as the axis is {FLAGS.axis}, got {values}")
    return cli.numbers("nodes", nodes), depths
