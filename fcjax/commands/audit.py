"""The audit of a saved program, or of one that is compiled for GPUs that are not there.

--hlo applies the check that every run makes to a file of HLO text, plain or gzipped, or to a folder
of a run or of --xla_dump_to, in which the interval's programs are picked out at any depth; without
--nodes it is judged as a program of as many nodes as its header has partitions. --topology
compiles the interval for l4x2, l4x3, a100x2, h100x2, h100x8, ... and audits that; it needs the
extra `aot` and no GPU. With --depth=all the interval is the whole model, from the embedding to the
choice of the next token, which --temperature, --top_k, --top_p and --repetition_penalty describe.

With --role the programs of --hlo may be any: no plan is asked, and a table says who is handed what.
A role is PATTERN=KIND, where the first pattern that is found in an input's name counts (the name
that JAX gave it: params['layers'][0]['up'], tokens) and KIND is state, weight, public, or table for
a weight whose rows are state. Many of them fit into a --flagfile:

    --role=embed=table --role=params=weight --role=cache=state --role=.=public

Exit code 0: clean; with --role, no node starts with complete state or is handed it. 1: a violation,
shown with its instruction; with --role, complete state, another node's shard, or something that
could not be followed. 2: it cannot be audited (no such file, not HLO, another program, something
that the audit does not understand).
"""

import pathlib

from absl import flags

from fcjax import audit, cli
from fcjax.audit.handed import handed_by
from fcjax.audit.hlo import dump
from fcjax.audit.rules import traffic
from fcjax.commands import shared_flags
from fcjax.decode import aot
from fcjax.record import certificate
from fcjax.sharded import contract, programs
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.ownership import Plan

FLAGS = flags.FLAGS
KINDS = {"state": audit.State, "weight": audit.Weight, "table": audit.Table, "public": audit.Public}


def define_flags():
    flags.DEFINE_string("hlo", None, "HLO text, plain or gzipped, or a folder with it.")
    flags.DEFINE_multi_string("role", [], "PATTERN=KIND of inputs of any program; see above.")
    shared_flags.topology()
    shared_flags.sizes()
    shared_flags.nodes(None, "Number of nodes. [as the program or the topology has]")
    shared_flags.layer()
    shared_flags.depth("1")
    shared_flags.sampling()
    flags.DEFINE_integer("batch", None, "Rows. [as the program has; 1 for a topology]")
    flags.DEFINE_integer("tokens", None, "New tokens. [as the program has; 1 for a topology]")
    flags.DEFINE_integer("length", None, "Cache slots. [as the program has; 256 for a topology]")
    shared_flags.dtype()
    shared_flags.workdir("New folder for a topology's program and certificate.")


def main(_):
    if (FLAGS.hlo is None) == (FLAGS.topology is None):
        raise ValueError("flags: expected either --hlo or --topology")
    if FLAGS.hlo is not None and FLAGS.workdir:
        raise ValueError("workdir: expected with --topology; a saved program tells not who made it")
    if FLAGS.role:
        return tell()
    cfg = shared_flags.config()
    interval = Interval(FLAGS.layer, cli.depth(FLAGS.depth, cfg.L))
    sampling = shared_flags.choice()
    check = audit_topology if FLAGS.topology else audit_saved
    verdicts = check(cfg, interval, sampling)
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def tell() -> int:
    """Who is handed what in programs that have no plan."""
    if FLAGS.hlo is None:
        raise ValueError("role: expected with --hlo; the interval's programs have a plan")
    roles = {}
    for role in FLAGS.role:
        pattern, _, kind = role.rpartition("=")
        if kind not in KINDS or not pattern:
            raise ValueError(f"role: expected PATTERN={'|'.join(KINDS)}, got {role!r}")
        roles.setdefault(pattern, KINDS[kind])
    found = [handed_by(text, (), roles) for text in dump.read(FLAGS.hlo, ("",)).values()]
    print(*(handed.text() for handed in found), sep="\n\n")
    return 0 if all(handed.ok for handed in found) else 1


def audit_saved(cfg, interval, sampling) -> list[audit.Verdict]:
    verdicts = []
    for name, text in dump.read(FLAGS.hlo, programs.INTERVAL_NAMES).items():
        module = audit.parse(text)
        model = ShardedModel(Plan(cfg, FLAGS.nodes or module.devices), interval, sampling)
        given = (FLAGS.batch, FLAGS.tokens, FLAGS.length)
        sizes = contract.sizes(module, model)
        sizes = [g if g is not None else s for g, s in zip(given, sizes, strict=True)]
        verdicts.append(audit.audit_interval(text, contract.interval_contract(model, *sizes)))
        whose = "" if FLAGS.nodes else " (nodes: as its header has partitions)"
        print(verdicts[-1].text(f"{name}, {described(model, sizes)}{whose}"))
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
    allowed = contract.interval_contract(model, *sizes.values(), FLAGS.dtype)
    verdict = audit.audit_interval(text, allowed)
    words = described(model, sizes.values())
    print(verdict.text(f"{FLAGS.topology} in {FLAGS.dtype}, {words}, compile-only audit"))
    print("\nThis audit is compile-only: no such GPUs were there, and the program was not run.")
    if FLAGS.workdir:
        path = certificate.write(
            FLAGS.workdir, verdict, model, **sizes, dtype=FLAGS.dtype, compile_only=True
        )
        print(f"certificate: {path}")
    return [verdict]


def described(model: ShardedModel, sizes) -> str:
    """The program's sizes, in words."""
    batch, tokens, length = sizes
    layers = f"{model.interval.depth} layer(s) from layer {model.interval.first}"
    if model.whole:
        layers = f"the whole model of {model.interval.depth} layers"
    return f"{model.plan.nodes} nodes, {layers}, B {batch}, T {tokens}, S {length}"
