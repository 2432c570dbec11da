"""Timing peers against each other in one run.

The machines that this runs on are noisy and drift, so the peers take turns, and what is quoted is
the median over rounds and the ratio within a round.
"""

import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fcjax.table import aligned


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
    rows = [(title, "median ms", "min .. max ms", f"x {base} (min .. max)")]
    timed = [(name, figures, group[base]) for group in groups for name, figures in group.items()]
    for n, (name, figures, against) in enumerate(timed):
        if name == base and n:
            continue
        ms = [1e3 * s for s in figures]
        ratio = [s / b for s, b in zip(figures, against, strict=True)]
        spread = f"{min(ms):.2f} .. {max(ms):.2f}"
        against = f"{statistics.median(ratio):.2f} ({min(ratio):.2f} .. {max(ratio):.2f})"
        rows.append((f"  {name}", f"{statistics.median(ms):.2f}", spread, against))
    return aligned(rows, "<>")


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
