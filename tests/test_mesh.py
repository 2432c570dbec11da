"""Which devices play the nodes; each case in a process of its own, as JAX chooses once."""

import os
import pathlib
import subprocess
import sys

import pytest

ENV = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[1])}
PROGRAM = """
import sys, jax
from fcjax.mesh import use_platform
try:
    use_platform(sys.argv[1], int(sys.argv[2]))
except ValueError as e:
    print(e)
else:
    print(len(jax.devices()), jax.devices()[0].platform, jax.config.jax_default_matmul_precision)
"""


def use(platform, nodes) -> str:
    command = [sys.executable, "-c", PROGRAM, platform, str(nodes)]
    result = subprocess.run(command, capture_output=True, text=True, env=ENV, check=True)
    (line,) = result.stdout.splitlines()
    return line


@pytest.mark.parametrize("nodes", [2, 7])
def test_as_many_cpu_devices_as_nodes(nodes):
    assert use("cpu", nodes) == f"{nodes} cpu highest"


def test_a_platform_that_is_not_there():
    line = use("tpu", 2)
    assert line.startswith("platform: expected one that JAX finds, got tpu")
