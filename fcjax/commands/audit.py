"""Audit a saved program, or one that is compiled for GPUs that are not there.

    python -m experiments.audit_hlo --hlo=runs/decode_layer-<time>/audit_T1
    .venv-aot/bin/python -m experiments.audit_hlo --topology=l4x2 --model=1.5b --dtype=bfloat16
    .venv-aot/bin/python -m experiments.audit_hlo --topology=l4x2 --model=1.5b --depth=all \\
      --temperature=0.7 --top_k=20 --top_p=0.9

The first applies the check that every run makes to a file of HLO text, plain or gzipped, or to a
folder of a run or of --xla_dump_to, in which the interval's programs are picked out at any depth.
Without --nodes it is judged as a program of as many nodes as its header has partitions. The second
compiles the interval for l4x2, l4x3, a100x2, h100x2, h100x8, ... and audits that; it needs the
extra `aot` (`make audit-gpu` sets it up) and no GPU. With --depth=all the interval is the whole
model, from the embedding to the choice of the next token, which the last flags describe.
Cost: seconds (a minute for the whole 1.5B), and about 1 GB for a topology.

Expected: "clean", with four reduce-scatters and two statistics for each layer, one of each for the
next layer's Q/K/V, and one all-gather behind them; with --depth=all one of each for the head, the
exchanges of the choice, and no all-gather. Otherwise each violation, with the instruction.
Exit code 0: clean. 1: a violation. 2: it cannot be audited (no such file, not HLO, another program,
something that the audit does not understand).
"""

import functools
import pathlib

from absl import flags

from fcjax import audit, cli
from fcjax.audit.hlo import dump
from fcjax.audit.rules import traffic
from fcjax.decode import aot
from fcjax.model.config import QWEN25, ModelConfig
from fcjax.record import certificate
from fcjax.sharded.contract import interval_contract
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.ownership import Plan
from fcjax.sharded.sampling import Sampling

FLAGS = flags.FLAGS
flags.DEFINE_string("hlo", None, "HLO text, plain or gzipped, or a folder with it.")
flags.DEFINE_string("topology", None, f"GPUs to compile for: {', '.join(aot.TOPOLOGIES)}, ...")
flags.DEFINE_string("model", "weights/tiny", f"Folder with config.json, or {', '.join(QWEN25)}.")
flags.DEFINE_integer("nodes", None, "Number of nodes. [as the program or the topology has]")
flags.DEFINE_integer("layer", 0, "The interval's first layer.")
flags.DEFINE_string("depth", "1", "How many whole layers it runs, or all.")
flags.DEFINE_float("temperature", 0.0, "Of the next token's choice, inside with --depth=all.")
flags.DEFINE_integer("top_k", 0, "Likewise; 0 for all.")
flags.DEFINE_float("top_p", 1.0, "Likewise; 1 for all.")
flags.DEFINE_float("repetition_penalty", 1.0, "Likewise; 1 for none.")
flags.DEFINE_integer("batch", None, "Rows. [as the program has; 1 for a topology]")
flags.DEFINE_integer("tokens", None, "New tokens. [as the program has; 1 for a topology]")
flags.DEFINE_integer("length", None, "Cache slots. [as the program has; 256 for a topology]")
flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Type to compile a topology for.")
flags.DEFINE_string("workdir", None, "New folder for a topology's program and certificate.")


def main(_):
    if (FLAGS.hlo is None) == (FLAGS.topology is None):
        raise ValueError("flags: expected either --hlo or --topology")
    if FLAGS.hlo is not None and FLAGS.workdir:
        raise ValueError("workdir: expected with --topology; a saved program tells not who made it")
    cfg = QWEN25.get(FLAGS.model) or ModelConfig.from_hf(FLAGS.model)
    interval = Interval(FLAGS.layer, cli.depth(FLAGS.depth, cfg.L))
    choice = FLAGS.temperature, FLAGS.top_k, FLAGS.top_p, FLAGS.repetition_penalty
    sampling = Sampling(*choice)
    check = audit_topology if FLAGS.topology else audit_saved
    verdicts = check(cfg, interval, sampling)
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def audit_saved(cfg, interval, sampling) -> list[audit.Verdict]:
    verdicts = []
    for name, text in dump.read(FLAGS.hlo).items():
        module = audit.parse(text)
        model = ShardedModel(Plan(cfg, FLAGS.nodes or module.devices), interval, sampling)
        contract_of = functools.partial(interval_contract, model)
        asked = (FLAGS.batch, FLAGS.tokens, FLAGS.length)
        found = dump.sizes(module, contract_of)
        sizes = [a if a is not None else f for a, f in zip(asked, found, strict=True)]
        verdicts.append(audit.audit_interval(text, contract_of(*sizes)))
        whose = "" if FLAGS.nodes else " (nodes: as its header has partitions)"
        print(verdicts[-1].text(f"{name}, {said(model, sizes)}{whose}"))
        for call in traffic.trusted_calls(module):
            print(f"custom call {call}: taken for XLA's own by its name alone")
        print()
    return verdicts


def audit_topology(cfg, interval, sampling) -> list[audit.Verdict]:
    _, nodes = aot.parse_topology(FLAGS.topology)
    if FLAGS.nodes not in (None, nodes):
        raise ValueError(f"nodes: expected {nodes}, as {FLAGS.topology} has, got {FLAGS.nodes}")
    model = ShardedModel(Plan(cfg, nodes), interval, sampling)
    sizes = {"batch": FLAGS.batch or 1, "tokens": FLAGS.tokens or 1, "length": FLAGS.length or 256}
    if FLAGS.workdir:
        pathlib.Path(FLAGS.workdir).mkdir(parents=True)
    text = aot.compile_interval(
        FLAGS.topology, cfg, interval, dtype=FLAGS.dtype, sampling=sampling, **sizes
    )
    verdict = audit.audit_interval(text, interval_contract(model, *sizes.values()))
    said_sizes = said(model, sizes.values())
    print(verdict.text(f"{FLAGS.topology} in {FLAGS.dtype}, {said_sizes}, compile-only audit"))
    print("\nThis audit is compile-only: no such GPUs were there, and the program was not run.")
    if FLAGS.workdir:
        path = certificate.write(FLAGS.workdir, verdict, model, **sizes, compile_only=True)
        print(f"certificate: {path}")
    return [verdict]


def said(model: ShardedModel, sizes) -> str:
    batch, tokens, length = sizes
    layers = f"{model.interval.depth} layer(s) from layer {model.interval.first}"
    if model.whole:
        layers = f"the whole model of {model.interval.depth} layers"
    return f"{model.plan.nodes} nodes, {layers}, B {batch}, T {tokens}, S {length}"


if __name__ == "__main__":
    cli.run(main)
