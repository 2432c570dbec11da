"""What a step costs beside its peers, all of them timed in this one run.

A layer and a decode step: on shards, under ordinary tensor parallelism, unsharded, and with
transformers on torch if that is installed; the bytes that the programs move; what recording takes.
Three copies of the weights are in memory at a time.
"""

import gc
import importlib.util
import statistics

from absl import flags

from fcjax import hub
from fcjax.bench import peers, timing, traffic
from fcjax.commands import shared_flags
from fcjax.decode.audited import Programs
from fcjax.decode.decoder import Decoder
from fcjax.mesh import make_mesh, use_platform
from fcjax.model import checkpoint
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from fcjax.sharded.programs import TensorParallel, compile

FLAGS = flags.FLAGS

BASE, SHARDS, PEER = "unsharded Flax", "every layer on shards", "tensor parallel"
RECORDED = 20  # steps


def define_flags():
    shared_flags.model()
    shared_flags.platform()
    shared_flags.nodes()
    flags.DEFINE_integer("context", 128, "Tokens in the caches when a step is timed.", 1)
    flags.DEFINE_integer("rounds", 9, "Counted rounds.", lower_bound=1)
    flags.DEFINE_bool("torch", True, "Time transformers on torch too, if it is installed.")


def main(_):
    use_platform(FLAGS.platform, FLAGS.nodes)
    folder = hub.model_folder(shared_flags.model_path())
    source = checkpoint.open_folder(folder)
    plan, mesh, length = Plan(source.cfg, FLAGS.nodes), make_mesh(FLAGS.nodes), FLAGS.context + 1
    whole, peer = ShardedModel(plan, Interval(0, source.cfg.L)), TensorParallel(plan)
    laid_out = {SHARDS: Layout(whole, mesh), PEER: Layout(peer, mesh)}
    print(f"{FLAGS.nodes} nodes, one token, {FLAGS.context} tokens in the cache, f32, {folder}\n")

    programs = Programs(laid_out[SHARDS], batch=1, length=length)
    print(f"audit of the program with every layer on shards: {programs.prepare(1)}\n")
    peer_step = compile(peer.program(), laid_out[PEER], batch=1, tokens=1, length=length)
    texts = {SHARDS: (whole, programs.audits[1].hlo), PEER: (peer, peer_step.as_text())}
    print(traffic.table(texts), flush=True)

    unsharded = peers.Unsharded(source, length)
    read, size = timing.bandwidth_reader(mesh)
    groups, layers = [], []
    for first in (True, False):
        layout = laid_out[SHARDS if first else PEER]
        params = source.load(layout.params())
        layer = peers.layer_step(layout, params, 0, length)
        name = "layer on shards" if first else "tensor parallel layer"
        beside = {"unsharded Flax layer": unsharded.layer_step(0), name: layer}
        layers.append(timing.take_turns(beside, FLAGS.rounds, calls=10))
        steps = {BASE: unsharded.decode_step(), "(reading memory once)": read}
        if first:
            steps[SHARDS] = peers.decode_step(Decoder(programs, params))
            if FLAGS.torch and importlib.util.find_spec("torch"):
                steps["transformers on torch"] = peers.torch_step(folder, length)
        else:
            steps[PEER] = peers.tensor_parallel_step(layout, peer_step, params, length)
        groups.append(timing.take_turns(steps, FLAGS.rounds))
        del params, layer, beside, steps  # the next ones need the memory
        gc.collect()
    rates = [s for group in groups for s in group.pop("(reading memory once)")]
    rate = size / statistics.median(rates)
    floor = peers.step_bytes(source.cfg, length)
    print("\n" + timing.table("layer step", layers, "unsharded Flax layer"))
    print("\n" + timing.table("decode step", groups, BASE))
    print(
        f"  floor: {floor / 1e9:.2f} GB of weights and cache at {rate / 1e9:.1f} GB/s, measured in"
        f" the same rounds: {1e3 * floor / rate:.1f} ms"
    )
    del unsharded
    gc.collect()
    cost = peers.recording(FLAGS.model, source, laid_out[SHARDS], FLAGS.platform, RECORDED)
    print(
        f"\nrecording {RECORDED} steps with every layer on shards: {cost['share']:.1%} of the"
        f" programs' time, {1e3 * cost['seconds'] / RECORDED:.2f} ms a step"
    )
