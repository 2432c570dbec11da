"""Which devices play the nodes, emulated ones on a CPU or GPUs, and their mesh."""

from collections.abc import Iterable

import jax


def use_platform(platform: str, nodes: int) -> None:
    """Choose the platform before JAX is used for the first time.

    On CPU, `nodes` devices are emulated in this process. On GPUs f32 products are computed in full
    f32: the default, TF32, keeps 10 bits and would be the largest error of a parity figure.

    Raises:
      ValueError: the platform is not there, or has fewer devices than nodes.
    """
    jax.config.update("jax_platforms", platform)
    jax.config.update("jax_default_matmul_precision", "highest")
    if platform == "cpu":
        jax.config.update("jax_num_cpu_devices", max(nodes, 1))
    try:
        devices = len(jax.devices())
    except (RuntimeError, AssertionError) as e:  # the latter where the plugin is not installed
        reason = (str(e).splitlines() or ["it has no such platform"])[0]
        raise ValueError(
            f"platform: expected one that JAX finds, got {platform}: {reason}"
        ) from None
    if devices < nodes:
        raise ValueError(f"nodes: expected at most {devices}, the {platform} devices, got {nodes}")


def hardware(platform: str, nodes: Iterable[jax.Device]) -> str:
    """What plays the nodes, in words; how many there are is said elsewhere."""
    if platform == "cpu":
        return "emulated nodes on one CPU, sharing its memory"
    return ", ".join(dict.fromkeys(device.device_kind for device in nodes))


AXIS = "node"  # the mesh axis whose devices are the nodes


def make_mesh(nodes: int) -> jax.sharding.Mesh:
    """The first N devices as the mesh axis `node`.

    Its axis type is Explicit: an Auto mesh turns an input that is laid out otherwise into a silent
    all-gather, an Explicit one refuses it.

    Raises:
      ValueError: there are fewer devices than nodes.
    """
    devices = jax.devices()
    if len(devices) < nodes:
        raise ValueError(
            f"nodes: expected at least {nodes} devices, got {len(devices)} of platform"
            f" {devices[0].platform}"
        )
    return jax.make_mesh(
        (nodes,), (AXIS,), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices[:nodes]
    )
