"""Compiles programs for GPUs that are not there, so that their HLO can be audited anywhere.

Needs the extra `aot` (XLA's GPU compiler and ptxas; no driver, no GPU) in the interpreter that
compiles. A topology is a GPU model and a number of nodes, "l4x2"; `targets/` describes the models
to the compiler. What comes out was never run: certificates say that the audit is compile-only.

The compiler runs in a process of its own with a time-out, because XLA has hung on devices that it
could not ask (jax-ml/jax#28376, openxla/xla#28959).
"""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

_TARGETS = pathlib.Path(__file__).parent / "targets"
TOPOLOGIES = ("l4x2", "l4x3", "a100x2", "h100x2", "h100x8")  # those that CI audits


def parse_topology(topology: str) -> tuple[str, int]:
    """GPU model and number of nodes of a topology's name.

    Raises:
      ValueError: not of the form MODELxN, or a model without a description in `targets/`.
    """
    match = re.fullmatch(r"([a-z0-9]+)x([0-9]+)", topology)
    known = sorted(path.stem for path in _TARGETS.glob("*.txt"))
    if not match or match[1] not in known or int(match[2]) < 1:
        raise ValueError(f"topology: expected one of {known} and xN, got {topology!r}")
    return match[1], int(match[2])


def make_mesh(topology: str):
    """The mesh axis `node` over compile-only devices, in place of `mesh.make_mesh`.

    Raises:
      ValueError: an unknown topology, or this interpreter has no CUDA compiler.
    """
    import jax
    from jax.experimental import topologies

    from fcjax.mesh import AXIS

    gpu, nodes = parse_topology(topology)
    try:
        description = topologies.get_topology_desc(
            topology_name=topology,
            platform="cuda",
            target_config=(_TARGETS / f"{gpu}.txt").read_text(),
            topology=f"1x1x{nodes}",
        )
    except RuntimeError as e:  # jax has no type for "no such platform"
        message = str(e).splitlines()[0]
        raise ValueError(
            f"topology: expected a CUDA compiler (pip install 'fcjax[aot]', JAX_PLATFORMS=cpu),"
            f" got {message}"
        ) from None
    return jax.make_mesh(
        (nodes,),
        (AXIS,),
        axis_types=(jax.sharding.AxisType.Explicit,),
        devices=description.devices,
    )


def compile_interval(
    topology: str,
    cfg,
    interval,
    *,
    batch: int = 1,
    tokens: int = 1,
    length: int,
    sampling=None,
    dtype: str = "float32",
    python: str = sys.executable,
    timeout: float = 300.0,
) -> str:
    """HLO text of the interval program, compiled for the topology in another process.

    Args:
      topology: for example "l4x2".
      cfg: a `fcjax.model.config.ModelConfig`.
      interval: a `fcjax.sharded.interval.Interval`.
      batch, tokens, length: rows, new tokens and cache slots.
      sampling: a `fcjax.sharded.sampling.Sampling`; None is greedy.
      dtype: type of parameters, activations and cache.
      python: the interpreter with the extra `aot`.
      timeout: seconds.

    Raises:
      ValueError: the topology is unknown, or the compiler fails or takes too long.
    """
    parse_topology(topology)
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "interval.hlo"
        job = {
            "topology": topology, "cfg": dataclasses.asdict(cfg), "dtype": dtype, "out": str(out),
            "interval": dataclasses.asdict(interval), "sizes": [batch, tokens, length],
            "sampling": dataclasses.asdict(sampling) if sampling else {},
        }
        try:
            done = subprocess.run(
                [python, "-m", "fcjax.decode.aot"],
                input=json.dumps(job),
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"{topology}: expected HLO within {timeout:.0f} s, got none") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ValueError(f"{topology}: the compiler failed: {lines[-1]} ({python})")
        return out.read_text()


def _main() -> None:
    import jax.numpy as jnp

    from fcjax.model.config import ModelConfig
    from fcjax.sharded import programs
    from fcjax.sharded.interval import Interval, ShardedModel
    from fcjax.sharded.layout import Layout
    from fcjax.sharded.ownership import Plan
    from fcjax.sharded.sampling import Sampling

    job = json.load(sys.stdin)
    mesh = make_mesh(job["topology"])
    plan = Plan(ModelConfig(**job["cfg"]), mesh.size)
    interval, sampling = Interval(**job["interval"]), Sampling(**job["sampling"])
    model = ShardedModel(plan, interval, sampling)
    batch, tokens, length = job["sizes"]
    layout = Layout(model, mesh, jnp.dtype(job["dtype"]))
    compiled = programs.compile(programs.interval(model, tokens), layout, batch, tokens, length)
    pathlib.Path(job["out"]).write_text(compiled.as_text())


if __name__ == "__main__":
    _main()
