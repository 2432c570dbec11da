"""Which custom calls this process has registered: code of its own under a name of its choice."""

from jaxlib import xla_client  # its registry is internal to jaxlib; read nowhere else

_PLATFORMS = ("cpu", "CUDA", "ROCM")


def registered() -> set[str]:
    """Targets that have code registered in this process, or waiting for their platform to start.

    XLA lists what is in jaxlib's own registry. A plugin, as that of CUDA, keeps another one, which
    it does not show.
    """
    names = {name for p in _PLATFORMS for name in xla_client.custom_call_targets(p)}
    waiting = xla_client._custom_callback.values()
    return names | {name for calls in waiting for name, *_ in calls}
