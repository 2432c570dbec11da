"""Timing peers against each other in one run.

The machines that this runs on are noisy and drift, so the peers take turns, and what is quoted is
the median over rounds and the ratio within a round.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fcjax import audit, cold_starts
from fcjax.audit.rules import traffic
from fcjax.decode import parity
from fcjax.decode.loop import Decoder
from fcjax.model import reference
from fcjax.model.params import param_shapes
from fcjax.record import baseline
from fcjax.record.job import Job
from fcjax.record.start import Start
from fcjax.sharded import operators
from fcjax.sharded.operators import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, share
from fcjax.sharded.programs import Model


def take_turns(peers: dict[str, Callable], rounds: int, calls: int = 3) -> dict[str, list[float]]:
    """Seconds a call of each peer, one figure a round.

    Args:
      peers: functions without arguments; a returned array is waited for.
      rounds: counted rounds, after one that is not counted.
      calls: calls of a peer in a row; the fastest is its figure for the round.
    """
    seconds = {name: [] for name in peers}
    for _ in range(rounds + 1):
        for name, call in peers.items():
            best = float("inf")
            for _ in range(calls):
                start = time.perf_counter()
                jax.block_until_ready(call())
                best = min(best, time.perf_counter() - start)
            seconds[name].append(best)
    return {name: figures[1:] for name, figures in seconds.items()}


def table(title: str, groups: list[dict[str, list[float]]], base: str) -> str:
    """Median, spread, and ratio to `base` round by round, as text.

    Args:
      title: of the first column.
      groups: what `take_turns` gave, for peers that did not fit into memory together; `base` is in
        each, and a peer is compared with the base of its own rounds.
      base: name of the peer that the others are compared with.
    """
    lines = [f"{title:<44} median ms   min .. max ms         x {base} (min .. max)"]
    rows = [(name, figures, group[base]) for group in groups for name, figures in group.items()]
    for n, (name, figures, against) in enumerate(rows):
        if name == base and n:
            continue
        ms = [1e3 * s for s in figures]
        ratio = [s / b for s, b in zip(figures, against, strict=True)]
        lines.append(
            f"  {name:<42} {statistics.median(ms):9.2f}   {min(ms):8.2f} .. {max(ms):8.2f}"
            f"   {statistics.median(ratio):5.2f} ({min(ratio):.2f} .. {max(ratio):.2f})"
        )
    return "\n".join(lines)


def moved(text: str, nodes: int) -> tuple[int, float]:
    """Collectives of a compiled program, audited or not, and the elements that one node sends."""
    found = [
        (i.opcode.removesuffix("-start"), operand.shape.dims)
        for computation, straight in traffic.reachable(audit.parse(text)).items()
        for i in computation.instructions
        if straight and i.opcode in traffic.JUDGED
        for operand in i.operands
    ]
    return len(found), sum(share(kind, math.prod(dims), nodes) for kind, dims in found)


def planned_sent(model: Model) -> float:
    """Elements that a node sends in a decode step, by the closed formula (docs/AUDIT.md).

    With every layer on shards, the sum over the operator table. Under tensor parallelism two
    all-reduces of the residual for each layer, one all-gather of it at the start, and the same
    head and choice.
    """
    plan, N = model.plan, model.plan.nodes
    if model.interval is not None:
        return operators.sent(model, 1, 1)
    residual = share(ALL_GATHER, plan.split("D").block, N)
    layers = plan.cfg.L * 2 * share(ALL_REDUCE, plan.cfg.D, N)
    head = share(REDUCE_SCATTER, plan.split("V").padded, N)
    return (
        residual
        + layers
        + head
        + sum(share(ALL_REDUCE, e.width, N) for e in model.sampling.exchanges)
    )


def traffic_table(programs: dict[str, tuple[Model, str]]) -> str:
    """What programs move in a decode step of one row, read from their HLO and planned."""
    lines = [
        "each step and node                       collectives   bytes sent, HLO   by the formula"
    ]
    for name, (model, text) in programs.items():
        count, sent = moved(text, model.plan.nodes)
        lines.append(
            f"  {name:<38} {count:11}   {4 * sent:15.1f}   {4 * planned_sent(model):14.1f}"
        )
    return "\n".join(lines)


def bandwidth_reader(mesh, gigabytes: float = 1.0) -> tuple[Callable, int]:
    """A peer that reads so many bytes of memory once, all nodes at a time, and the bytes."""
    rows = int(gigabytes * 2**28)
    split = jax.NamedSharding(mesh, jax.P(mesh.axis_names[0]))
    data = jnp.ones((mesh.size, rows // mesh.size), jnp.float32, device=split)
    per_node = jax.shard_map(
        lambda x: jnp.sum(x, axis=1), mesh=mesh, in_specs=split.spec, out_specs=split.spec
    )
    read = jax.jit(per_node)
    return lambda: read(data), data.nbytes


def layer_step(model: Model, params: dict, layer: int, length: int) -> Callable:
    """One layer over the nodes, one token at the end of a cache of `length` slots."""
    program = model.layer_program(layer)
    step = model.compile(program, batch=1, tokens=1, length=length)
    params = {path: params[path] for path in program.params}
    state, pos = (_ones(model.value(name, batch=1, tokens=1)) for name in program.arguments)
    pos = pos * (length - 1)
    caches = [tuple(map(_ones, model.cache(1, length)))]

    def call():
        nonlocal caches
        residual, caches = step(params, caches, state, pos)
        return residual

    return call


def tensor_parallel_step(model: Model, step, params: dict, length: int) -> Callable:
    """One decode step of ordinary tensor parallelism, the next token out.

    Args:
      model: without an interval.
      step: its `tensor_parallel` program, compiled for one row and `length` slots.
      params: laid out as it says.
      length: slots of the caches.
    """
    tokens, pos = (_ones(model.value(n, 1, 1)) for n in model.tensor_parallel.arguments)
    pos = pos * (length - 1)
    caches = model.init_cache(1, length)

    def call():
        nonlocal caches
        token, _, caches = step(params, caches, tokens, pos)
        return token

    return call


def decode_step(decoder: Decoder) -> Callable:
    """One decode step into the last slot of the caches, the next token out."""
    token, pos = np.ones((1, 1), np.int32), np.array([decoder.programs.slots - 1])
    return lambda: decoder.step(token, pos).values["next_tokens"]


class Unsharded:
    """The reference model as a peer: the same work on one device, with all cores."""

    def __init__(self, source, length: int):
        self.model = parity.unsharded(source)
        self.pos = jnp.array([length - 1])
        self.caches = reference.init_cache(source.cfg, 1, length)

    def layer_step(self, layer: int) -> Callable:
        """One layer, one token into the last slot of its cache."""
        step = jax.jit(lambda module, x, cache, pos: module(x, cache, pos), donate_argnums=2)
        x_BTD = jnp.ones((1, 1, self.model.cfg.D))

        def call():
            module, cache = self.model.layers[layer], self.caches[layer]
            residual, self.caches[layer] = step(module, x_BTD, cache, self.pos)
            return residual

        return call

    def decode_step(self) -> Callable:
        """One decode step into the last slot of the caches, logits out."""

        def run(model, tokens, caches, pos):
            residuals, caches = model(tokens, caches, pos)
            return model.logits(residuals[-1]), caches

        step = jax.jit(run, donate_argnums=2)
        token = jnp.ones((1, 1), jnp.int32)

        def call():
            logits, self.caches = step(self.model, token, self.caches, self.pos)
            return logits

        return call


def torch_step(folder, length: int) -> Callable:
    """One decode step of transformers on torch in f32, at the end of a cache of `length` - 1."""
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    cache = DynamicCache(config=model.config)

    @torch.no_grad()
    def call():
        if cache.get_seq_length() == 0:
            model(torch.ones(1, length - 1, dtype=torch.int64), cache=cache)
        out = model(torch.ones(1, 1, dtype=torch.int64), cache=cache)
        cache.crop(-1)
        return np.asarray(out.logits)

    return call


def recording(model_path: str, source, model: Model, platform: str, steps: int) -> dict:
    """What recording costs: one start without a reference, into a folder that is thrown away.

    Returns:
      "seconds" of recording all steps, and "share" of the programs' time.
    """
    job = Job(
        command="benchmark", flags={}, model_path=model_path, weights_sha256=source.digest,
        cfg=source.cfg, nodes=model.plan.nodes, interval=model.interval, sampling=model.sampling,
        platform=platform, hardware="", dtype=jnp.dtype(model.dtype).name,
        length=steps + 1, cold_starts=1, steps=steps, seed=0, prompts=((("", (1,)),),),
        compared=False, baseline=baseline.none(),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        start = Start(cold_starts.create(f"{folder}/run", job), job, 0)
        start.prepare()
        start.load()
        return start.decode()["recording"]


def step_bytes(cfg, length: int) -> int:
    """Bytes that a decode step must read in f32: every weight but the embedding rows that it does
    not look up (a tied table is read by the head), and the filled cache."""
    shapes = param_shapes(cfg)
    weights = sum(math.prod(s) for p, s in shapes.items() if cfg.tied or p != "embed")
    return 4 * (weights + 2 * cfg.L * cfg.K * length * cfg.H)


def _ones(target: jax.ShapeDtypeStruct) -> jax.Array:
    return jnp.ones(target.shape, target.dtype, device=target.sharding)
