"""The audit's verdict for each depth and number of nodes, as a table.

    python -m experiments.audit_grid --model=1.5b

Compiles the decode step's interval for emulated nodes, audits it, and prints one row for each
depth. No weights are needed or loaded. Cost at 1.5B: ten minutes on two cores; seconds for the tiny
model.

Expected: "clean" in each cell, with the number of collectives inside the interval and behind it
(the compatibility all-gather; none where all layers are inside). Exit code 1 if a cell is not
clean.
"""

from absl import flags
from tqdm import tqdm

from fcjax import audit, cli
from fcjax.mesh import make_mesh, use_platform
from fcjax.model.config import QWEN25, ModelConfig
from fcjax.sharded import programs
from fcjax.sharded.contract import interval_contract
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "weights/tiny", f"Folder with config.json, or {', '.join(QWEN25)}.")
flags.DEFINE_list("nodes", "2,3,4,5,6,7,8,12", "Numbers of nodes.")
flags.DEFINE_list("depths", "1,2,4,all", "How many layers in a row, from layer 0, run on shards.")
flags.DEFINE_integer("length", 256, "Cache slots.", lower_bound=2)


def main(_):
    every = cli.numbers("nodes", FLAGS.nodes)
    use_platform("cpu", max(every))
    cfg = QWEN25.get(FLAGS.model) or ModelConfig.from_hf(FLAGS.model)
    intervals = [Interval(0, cli.depth(depth, cfg.L)) for depth in FLAGS.depths]
    for interval in intervals:
        interval.check(cfg.L)
    plans = [Plan(cfg, n) for n in every]
    rows, failed = [], []
    with tqdm(total=len(intervals) * len(plans), unit="program") as bar:
        for interval in intervals:
            cells = []
            for plan in plans:
                verdict = check(plan, interval)
                if not verdict.ok:
                    failed.append(f"depth {interval.depth}, {plan.nodes} nodes: {verdict}")
                inside, behind = len(verdict.before), len(verdict.after)
                cells.append(f"{'clean' if verdict.ok else 'FAILED'}, {inside} + {behind}")
                bar.update()
            depth = f"all {cfg.L}" if interval.depth == cfg.L else str(interval.depth)
            rows.append((depth, *cells))
    print(f"\n{FLAGS.model}, a decode step of one row, {FLAGS.length} cache slots, f32\n")
    head = ("depth", *(f"N = {n}" for n in every))
    for row in (head, ("---",) * len(head), *rows):
        print(f"| {' | '.join(row)} |")
    for line in failed:
        print(f"\n{line}")
    return 1 if failed else 0


def check(plan: Plan, interval: Interval) -> audit.Verdict:
    """Compile and audit one cell."""
    model = ShardedModel(plan, interval)
    sizes, layout = (1, 1, FLAGS.length), Layout(model, make_mesh(plan.nodes))
    compiled = programs.compile(programs.interval(model, 1), layout, *sizes)
    return audit.audit_compiled(compiled, interval_contract(model, *sizes))


if __name__ == "__main__":
    cli.run(main)
