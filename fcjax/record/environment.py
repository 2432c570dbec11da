"""Where a run takes place: versions, devices and settings that its numbers depend on."""

import functools
import importlib.metadata
import os
import pathlib
import platform

import jax

from fcjax.files import sha256
from fcjax.record import certificate
from fcjax.sharded.layout import Layout

_PACKAGES = ("fcjax", "jax", "jaxlib", "flax", "numpy", "orbax-checkpoint", "safetensors",
             "transformers")


@functools.cache
def code_sha256() -> str:
    """Hash of this package's own sources: what wrote a record, and whether it was this code."""
    root = pathlib.Path(__file__).parents[1]
    sources = sorted(p for kind in ("*.py", "*.css") for p in root.rglob(kind))
    return sha256(
        b"".join(p.relative_to(root).as_posix().encode() + p.read_bytes() for p in sources)
    )


def describe(layout: Layout) -> dict:
    """Versions, hardware and settings of this process, with the nodes in order."""
    devices = list(layout.mesh.devices.flat)
    settings = certificate.environment()
    return {
        "compilation_cache": bool(jax.config.jax_enable_compilation_cache),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES}
        | {"python": settings.pop("python")},
        "hardware": {
            "platform": devices[0].platform,
            "platform_version": devices[0].client.platform_version,
            "machine": platform.machine(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "devices": [
                {"node": q, "device": d.id, "kind": d.device_kind, "process": d.process_index}
                for q, d in enumerate(devices)
            ],
        },
        "settings": settings | {"matmul_precision": jax.config.jax_default_matmul_precision},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as f:
            names = [x.split(":", 1)[1].strip() for x in f if x.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()
