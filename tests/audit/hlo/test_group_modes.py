"""Whose data arrives where: each collective is run alone, and compared with `groups`.

HLO text is compiled for the emulated devices with every combination of replicas and partitions, of
channel and global ids, and of groups that compiles. Not among them are the started halves of
asynchronous collectives (a compiler makes them, and takes no program that has them), and those that
XLA's CPU backend does not have (collective-broadcast, ragged-all-to-all).
"""

import itertools

import jax
import numpy as np
import pytest
from jaxlib import _hlo, xla_client

from fcjax.audit.hlo.groups import device_groups
from fcjax.audit.hlo.proto import Unauditable, decode

_PROGRAM = """HloModule m

%sum (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}}

ENTRY %e (x: f32[{sent}]) -> f32[{received}] {{
  %x = f32[{sent}]{{0}} parameter(0), sharding={{manual}}
  ROOT %r = f32[{received}]{{0}} {opcode}(%x), {attributes}, sharding={{manual}}
}}
"""
# What each puts in and receives, by the number n of a group's devices, and its further attributes.
OPCODES = {
    "all-reduce": ("1", "1", ", to_apply=%sum"),
    "all-gather": ("1", "n", ", dimensions={0}"),
    "reduce-scatter": ("n", "1", ", dimensions={0}, to_apply=%sum"),
    "all-to-all": ("n", "n", ", dimensions={0}"),
}
LAYOUTS = [(1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (2, 2), (4, 1)]  # replicas, partitions
MODES = ["", "channel_id=1, ", "channel_id=1, use_global_device_ids=true, "]
SPELLINGS = {
    1: ["{}", "{{0}}", "[1,1]<=[1]"],
    2: ["{{0,1}}", "{{1,0}}", "{{0},{1}}", "[1,2]<=[2]", "[2,1]<=[2]", "mesh['a'=2] {'a'}"],
    3: ["{{0,1,2}}", "{{2,0,1}}", "{{0},{1},{2}}", "[1,3]<=[3]", "mesh['a'=3] {'a'}"],
    4: ["{{0,1,2,3}}", "{{3,1,0,2}}", "{{0,1},{2,3}}", "{{0,3},{2,1}}", "{{2},{3},{0},{1}}",
        "[2,2]<=[4]", "[2,2]<=[2,2]T(1,0)", "mesh['a'=2,'b'=2] {'a'}", "mesh['a'=2,'b'=2] {'b'}",
        "mesh['a'=2,'b'=2] {'b','a'}", "mesh['a'=4] {'a':(1)2}"],
}


def _program(opcode, attributes, n):
    sent, received, more = OPCODES[opcode]
    sent, received = (str(n) if size == "n" else size for size in (sent, received))
    attributes = f"{attributes}{more}"
    return _PROGRAM.format(sent=sent, received=received, opcode=opcode, attributes=attributes)


def _groups(text, replicas, partitions):
    """The groups that we read from a text."""
    module = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    entry = decode(module)["computations"][-1]
    (root,) = (i for i in entry["instructions"] if i["id"] == entry["root_id"])
    return device_groups(root, replicas, partitions, "r")


def _run(text, replicas, partitions, inputs):
    """What each device ends with, from what it starts with: the whole computation, compiled."""
    module = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    mlir = xla_client._xla.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(module))
    n = replicas * partitions
    devices = jax.devices()[:n]
    options = xla_client.CompileOptions()
    options.num_replicas = options.executable_build_options.num_replicas = replicas
    options.num_partitions = options.executable_build_options.num_partitions = partitions
    options.executable_build_options.use_spmd_partitioning = partitions > 1
    options.device_assignment = xla_client.DeviceAssignment.create(
        np.arange(n).reshape(replicas, partitions)
    )
    client = devices[0].client
    program = client.compile_and_load(mlir, xla_client.DeviceList(tuple(devices)), options)
    mesh = jax.make_mesh((n,), ("d",), devices=devices)
    x = jax.device_put(np.concatenate(inputs), jax.NamedSharding(mesh, jax.P("d")))
    (out,) = program.execute_sharded([x]).disassemble_into_single_device_arrays()
    return [np.asarray(shard) for shard in out]


def _expected(opcode, groups, inputs):
    """The same by our groups; the operation itself in numpy."""
    out = [None] * len(inputs)
    for group in groups:
        operands = [inputs[d] for d in group]
        for position, device in enumerate(group):
            out[device] = {
                "all-reduce": lambda _, x: sum(x),
                "all-gather": lambda _, x: np.concatenate(x),
                "reduce-scatter": lambda n, x: sum(x)[n : n + 1],
                "all-to-all": lambda n, x: np.concatenate([y[n : n + 1] for y in x]),
            }[opcode](position, operands)
    return out


@pytest.mark.parametrize(("replicas", "partitions"), LAYOUTS)
@pytest.mark.parametrize("opcode", OPCODES)
def test_whose_data_arrives(opcode, replicas, partitions):
    ran = []
    devices = replicas * partitions
    modes = MODES[:2] if opcode == "all-to-all" else MODES
    counts = sorted({1, replicas, partitions, devices})
    for mode, count in itertools.product(modes, counts):
        for spelling in SPELLINGS[count]:
            attributes = f"{mode}replica_groups={spelling}"
            try:
                groups = _groups(_program(opcode, attributes, 1), replicas, partitions)
            except Unauditable:
                continue
            if opcode == "all-to-all" and spelling == "{}":
                continue  # does not compile
            program = _program(opcode, attributes, len(groups[0]))
            size = len(groups[0]) if OPCODES[opcode][0] == "n" else 1
            # Which devices, and which of their elements, can be told from any sum.
            inputs = [np.float32(2**d) + 100 * np.arange(size, dtype="f4") for d in range(devices)]
            got = _run(program, replicas, partitions, inputs)
            want = _expected(opcode, groups, inputs)
            assert [x.tolist() for x in got] == [x.tolist() for x in want], attributes
            ran.append((mode, groups))
    assert {mode for mode, _ in ran} == set(modes)
    assert any(len(groups[0]) > 1 for _, groups in ran)


@pytest.mark.parametrize(
    "attributes",
    [
        "replica_groups={{0,1}}",  # there is one replica
        "channel_id=1, replica_groups={{0,1}}",
        "channel_id=1, replica_groups={{0},{1}}",
        "channel_id=1, use_global_device_ids=true, replica_groups={}",
        "channel_id=1, use_global_device_ids=true, replica_groups={{0}}",
        "use_global_device_ids=true, replica_groups={{0,1}}",
    ],
)
def test_ids_of_what_is_not_there(attributes):
    with pytest.raises(Unauditable, match="expected"):
        _groups(_program("all-gather", attributes, 2), 1, 2)
