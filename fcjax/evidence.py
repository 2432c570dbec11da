"""The record of a run: a folder that says what ran, where, and what came out at every step.

- config.json: the program's flags and the model's sizes
- environment.json: versions, devices, XLA flags
- plan.json: who owns which coordinates, and the interval's boundaries
- audit_T<n>/: the interval's program for n tokens at a time, and the certificate of its audit
- steps.jsonl: one line a step, written and flushed as the step ends
- summary.json: written last; a folder without it is a run that did not finish
"""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform

import jax

from fcjax.audit import certificate
from fcjax.boundaries import boundaries, compatibility_all_gather
from fcjax.decode import Programs

_PACKAGES = ("fcjax", "jax", "jaxlib", "flax", "numpy", "orbax-checkpoint", "safetensors",
             "transformers")  # fmt: skip


def environment() -> dict:
    """Versions, devices and settings that the numbers of a run depend on."""
    devices = jax.devices()
    return certificate.environment() | {
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "machine": platform.machine(),
        "platform": devices[0].platform,
        "platform_version": devices[0].client.platform_version,
        "devices": [f"{d.id}: {d.device_kind}" for d in devices],
        "matmul_precision": jax.config.jax_default_matmul_precision,
    }


class RunFolder:
    """A run's folder; everything known before the first step is written when it is made."""

    def __init__(self, folder, programs: Programs, config: dict, weights: str):
        """
        Args:
          folder: made here; must not exist.
          programs: compiled and audited.
          config: the program's flags.
          weights: digest of the model folder's manifest.

        Raises:
          ValueError: the folder exists; what is in it stays as it is.
        """
        self.folder = pathlib.Path(folder)
        try:
            self.folder.mkdir(parents=True)
        except FileExistsError:
            raise ValueError(
                f"workdir: expected a new folder, got an existing one ({folder})"
            ) from None
        plan, interval = programs.model.plan, programs.model.interval
        self._write("config.json", {
            "flags": config,
            "model": dataclasses.asdict(plan.cfg),
            "weights_sha256": weights,
            "batch": programs.batch,
            "cache_slots": programs.length,
            "dtype": jax.numpy.dtype(programs.model.dtype).name,
        })  # fmt: skip
        self._write("environment.json", environment())
        self._write("plan.json", plan.describe() | {
            "interval": dataclasses.asdict(interval),
            "boundaries": [
                dataclasses.asdict(b) for b in boundaries(plan, interval, programs.batch, 1)
            ],
            "outside_the_claim": dataclasses.asdict(
                compatibility_all_gather(plan, programs.batch, 1)
            ),
        })  # fmt: skip
        for tokens, verdict in programs.audits.items():
            folder = self.folder / f"audit_T{tokens}"
            folder.mkdir()
            certificate.write(
                folder,
                verdict,
                programs.model,
                batch=programs.batch,
                tokens=tokens,
                length=programs.length,
                weights=weights,
                platform_version=jax.devices()[0].client.platform_version,
            )

    def step(self, record: dict) -> None:
        """Append one step; it is on disk when this returns."""
        with open(self.folder / "steps.jsonl", "a") as f:
            f.write(json.dumps(record) + "\n")
            f.flush()
            os.fsync(f.fileno())

    def finish(self, summary: dict) -> None:
        """Write the summary: the run is complete."""
        self._write("summary.json", summary)

    def _write(self, name: str, content) -> None:
        (self.folder / name).write_text(json.dumps(content, indent=1) + "\n")
