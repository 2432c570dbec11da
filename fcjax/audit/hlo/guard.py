"""Texts that this process did not compile itself are parsed in another process first.

XLA's parser ends the process that it runs in on some damaged texts (a failed CHECK, or a stack that
overflows), and an audit must end with a verdict or an error.
"""

import signal
import subprocess
import sys

from fcjax.audit.hlo.proto import Unauditable

_PARSE = """
import sys
from jaxlib import _hlo
text = sys.stdin.buffer.read().decode()
try:
    module = _hlo.hlo_module_from_text(text)
    module.as_serialized_hlo_module_proto()
    module.to_string()
except Exception:
    pass  # it will be raised again where it can be read
"""


def check(text: str, timeout: float = 60.0) -> str:
    """The same text, once XLA's parser has been seen to survive it.

    Raises:
      Unauditable: the parser crashes, or takes longer than `timeout` seconds.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PARSE],
            input=text.encode("utf-8", "surrogatepass"),
            capture_output=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise Unauditable(f"HLO text: expected it parsed within {timeout:.0f} s") from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise Unauditable(f"HLO text: XLA's parser crashed on it ({name})")
    return text
