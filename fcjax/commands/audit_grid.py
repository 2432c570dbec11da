"""The audit's verdict for each depth and number of nodes, as a table.

Compiles the decode step's interval for emulated nodes, audits it, and prints one row for each
depth, with the number of collectives inside the interval and after it, and the seconds that the
audit took (not the compiler). No weights are needed or loaded. Exit code 1: a cell is not clean.
"""

import time

from absl import flags
from tqdm import tqdm

from fcjax import audit, cli
from fcjax.commands import shared_flags
from fcjax.mesh import make_mesh, use_platform
from fcjax.sharded import programs
from fcjax.sharded.contract import interval_contract
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan

FLAGS = flags.FLAGS


def define_flags():
    shared_flags.sizes()
    shared_flags.numbers_of_nodes()
    shared_flags.depths()
    flags.DEFINE_integer("length", 256, "Cache slots.", lower_bound=2)


def main(_):
    every = cli.numbers("nodes", FLAGS.nodes)
    use_platform("cpu", max(every))
    cfg = shared_flags.config()
    intervals = [Interval(0, cli.depth(depth, cfg.L)) for depth in FLAGS.depths]
    for interval in intervals:
        interval.check(cfg.L)
    plans = [Plan(cfg, n) for n in every]
    rows, failed = [], []
    with tqdm(total=len(intervals) * len(plans), unit="program") as bar:
        for interval in intervals:
            cells = []
            for plan in plans:
                verdict, seconds = check(plan, interval)
                if not verdict.ok:
                    failed.append(f"depth {interval.depth}, {plan.nodes} nodes: {verdict}")
                inside, after = len(verdict.before), len(verdict.after)
                end = "clean" if verdict.ok else "FAILED"
                cells.append(f"{end}, {inside} + {after}, {seconds:.1f} s")
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


def check(plan: Plan, interval: Interval) -> tuple[audit.Verdict, float]:
    """Compile and audit one cell; the verdict and the seconds that the audit took."""
    model = ShardedModel(plan, interval)
    sizes, layout = (1, 1, FLAGS.length), Layout(model, make_mesh(plan.nodes))
    compiled = programs.compile(programs.interval(model, 1), layout, *sizes)
    contract, start = interval_contract(model, *sizes, layout.dtype.name), time.perf_counter()
    return audit.audit_compiled(compiled, contract), time.perf_counter() - start
