"""A graph of an optimized HLO module: the only door to XLA's parser, which no one promises.

XLA parses the text (`jaxlib._hlo`) and hands the module back as HloModuleProto bytes; `proto`
decodes them and this module links the result into immutable Python objects. The bytes are the
better source than each instruction's text: one decoder with fixed field numbers covers shapes,
layouts, attributes and all spellings of replica groups, with no grammar of our own. One thing is
not in the proto, the numbers of partitions and replicas; they are read from the header line that
XLA prints (`_header`).

XLA's parser validates names, types and structure, not meaning: what an instruction does to the
state is for `provenance` to derive, and anything not understood is an `Unauditable` error.
"""

import dataclasses
import json
import re

from fcjax.audit.hlo.groups import Groups, device_groups
from fcjax.audit.hlo.proto import Unauditable, decode
from fcjax.audit.hlo.shape import Shape, read_shape

__all__ = ["Computation", "Instruction", "Module", "Shape", "Slice", "Unauditable", "parse"]

_QUOTED = re.compile(r'"(\\.|[^"\\])*"')


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """Range of one dimension of a `slice` instruction."""

    start: int
    limit: int
    stride: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One instruction; instructions are compared by identity.

    Attributes:
      operands: the instructions whose values it reads.
      called: the computations it calls: a fusion's or a call's body, a reduction's combiner, a
        loop's (body, condition), a conditional's branches, an async wrapper's wrapped computation.
      scope: the `op_name` of the metadata, where jax.named_scope is found again.
      groups: the devices of each group of a collective, in order; empty if it has none.
      backend_config: the backend's text, "" if it has none.
      attributes: the other decoded fields of HloInstructionProto, by name.
    """

    name: str
    opcode: str
    shape: Shape
    operands: tuple["Instruction", ...]
    called: tuple["Computation", ...]
    scope: str
    groups: Groups
    backend_config: str
    attributes: dict

    def __repr__(self):
        return f"%{self.name} = {self.shape} {self.opcode}"

    def __getitem__(self, field: str):
        return self.attributes[field]

    @property
    def notes(self) -> dict[str, str]:
        """Its frontend attributes: wishes of whoever wrote the program, about where it runs too."""
        return _notes(self["frontend_attributes"])

    @property
    def slices(self) -> tuple[Slice, ...]:
        return tuple(Slice(**s) for s in self["slice_dimensions"])

    def config(self) -> dict:
        """The backend config as JSON; Unauditable if it is not."""
        try:
            config = json.loads(self.backend_config or "{}")
        except json.JSONDecodeError as e:
            raise Unauditable(f"{self.name}: expected a JSON backend config, got {e}") from None
        if not isinstance(config, dict):
            raise Unauditable(f"{self.name}: expected a JSON object as backend config")
        return config


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Computation:
    """Instructions in the order in which they run (a valid order of definition in a fusion)."""

    name: str
    instructions: tuple[Instruction, ...]
    root: Instruction
    thread: str

    @property
    def parameters(self) -> tuple[Instruction, ...]:
        """Parameters by number; Unauditable if a number is missing or double."""
        parameters = sorted(
            (i for i in self.instructions if i.opcode == "parameter"),
            key=lambda i: i["parameter_number"],
        )
        if [i["parameter_number"] for i in parameters] != list(range(len(parameters))):
            raise Unauditable(
                f"{self.name}: expected parameters 0 to {len(parameters) - 1}, got {parameters}"
            )
        return tuple(parameters)


@dataclasses.dataclass(frozen=True, slots=True)
class Alias:
    """An output buffer that reuses the buffer of a parameter; indices are tuple paths."""

    output: tuple[int, ...]
    parameter: int
    parameter_index: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Module:
    """One program, as every device runs it.

    Attributes:
      scheduled: the order of the instructions is the order in which they are started.
      devices: devices that run it; one partition each.
      layout: shapes of all arrays that enter and leave, with the memory that the caller sees.
      notes: frontend attributes of the module.
      computations: callees before callers, so that the entry is the last.
      elided: names of constants whose numbers the text leaves out; XLA's parser makes them zero.
    """

    name: str
    entry: Computation
    computations: tuple[Computation, ...]
    scheduled: bool
    devices: int
    aliases: tuple[Alias, ...]
    layout: tuple[Shape, ...]
    notes: dict[str, str]
    elided: frozenset[str]
    xla: object = dataclasses.field(repr=False)

    def line(self, instruction: Instruction) -> str:
        """The instruction's text as XLA prints it, without metadata and backend config."""
        for computation in self.xla.computations():
            for i in computation.instructions():
                if i.name == instruction.name:
                    return i.to_string().split(", metadata=")[0].split(", backend_config=")[0]
        return repr(instruction)


def parse(text: str) -> Module:
    """Parse one HLO module in text form.

    Raises:
      Unauditable: XLA refuses the text, or the module uses something that this graph cannot hold.
    """
    from jaxlib import _hlo  # internal to jaxlib; imported nowhere else

    try:
        xla = _hlo.hlo_module_from_text(text)
        data = xla.as_serialized_hlo_module_proto()
        header = _header(xla.to_string())
    except Unauditable:
        raise
    except Exception as e:  # XlaRuntimeError, whose home moves between versions of jaxlib
        message = str(e).strip().splitlines()
        raise Unauditable(f"HLO text: {message[0] if message else type(e).__name__}") from None
    replicas = header.get("replica_count", 1)
    if replicas != 1:
        raise Unauditable(f"{xla.name}: expected one replica, got replica_count={replicas}")
    return _link(decode(data), header.get("num_partitions", 1), _elided(text), xla)


def _elided(text: str) -> frozenset[str]:
    """Names of constants with dots in the place of numbers: ``%c = f32[9,9] constant({...})``.

    The parsed module does not tell them from zeros.
    """
    lines = (_QUOTED.sub('""', line) for line in text.splitlines() if "..." in line)
    words = (line.replace("ROOT", " ").replace("=", " ").split() for line in lines if "..." in line)
    return frozenset(first.removeprefix("%") for first, *_ in words)


def _header(text: str) -> dict[str, int]:
    """The integer attributes of the first line, for example ``num_partitions=2``."""
    line, depth, quoted, start, parts = text.partition("\n")[0], 0, False, 0, []
    for pos, char in enumerate(line):
        if char == '"' and line[pos - 1] != "\\":
            quoted = not quoted
        elif not quoted and char in "{[(":
            depth += 1
        elif not quoted and char in "}])":
            depth -= 1
        elif char == "," and depth == 0 and not quoted:
            parts.append(line[start:pos])
            start = pos + 1
    if depth or quoted:
        raise Unauditable(f"HLO header: expected balanced brackets, got {line[:80]!r}")
    parts.append(line[start:])
    pairs = (part.strip().partition("=") for part in parts)
    return {key: int(value) for key, _, value in pairs if value.isdecimal()}


def _link(proto: dict, devices: int, elided: frozenset[str], xla) -> Module:
    if proto["is_dynamic"]:
        raise Unauditable(f"{proto['name']}: expected static shapes, got a dynamic module")
    if proto["cross_program_prefetches"]:
        raise Unauditable(f"{proto['name']}: expected no prefetches from other programs")
    order = {s["key"]: s["value"] for s in (proto["schedule"] or {"sequences": ()})["sequences"]}
    payloads = proto["payloads"]
    computations: dict[int, Computation] = {}
    for c in proto["computations"]:
        if c["id"] in computations:
            raise Unauditable(f"{c['name']}: expected one computation with id {c['id']}")
        computations[c["id"]] = _computation(c, order.get(c["id"]), computations, devices, payloads)
    entry_id = proto["entry_computation_id"]
    if entry_id not in computations:
        raise Unauditable(f"{proto['name']}: expected an entry computation, got id {entry_id}")
    return Module(
        name=proto["name"],
        entry=computations[entry_id],
        computations=tuple(computations.values()),
        scheduled=entry_id in order,
        devices=devices,
        aliases=tuple(
            Alias(a["output_shape_index"], a["parameter_number"], a["parameter_shape_index"])
            for a in (proto["input_output_alias"] or {"entries": ()})["entries"]
        ),
        layout=_layout(proto),
        notes=_notes(proto["frontend_attributes"]),
        elided=elided,
        xla=xla,
    )


def _layout(proto: dict) -> tuple[Shape, ...]:
    shape = proto["host_program_shape"]
    if shape is None or shape["result"] is None:
        raise Unauditable(f"{proto['name']}: expected the layout of its inputs and results")
    whole = [read_shape(s, proto["name"]) for s in (*shape["parameters"], shape["result"])]
    return tuple(leaf for s in whole for leaf in s.leaves())


def _notes(proto: dict | None) -> dict[str, str]:
    return {note["key"]: note["value"] for note in proto["map"]} if proto else {}


def _computation(proto: dict, order, computations, devices: int, payloads) -> Computation:
    by_id: dict[int, Instruction] = {}
    for i in proto["instructions"]:
        if i["id"] in by_id:
            raise Unauditable(f"{i['name']}: expected one instruction with id {i['id']}")
        by_id[i["id"]] = _instruction(i, by_id, computations, devices, payloads)
    if proto["root_id"] not in by_id:
        raise Unauditable(f"{proto['name']}: expected a root, got id {proto['root_id']}")
    sequence = tuple(by_id.values())
    if order is not None:
        ids = order["instruction_ids"] if order else ()
        if sorted(ids) != sorted(by_id):
            raise Unauditable(f"{proto['name']}: expected each instruction once in the schedule")
        sequence = tuple(by_id[i] for i in ids)
    position = {i: n for n, i in enumerate(sequence)}
    for i in sequence:
        if any(position[o] > position[i] for o in i.operands):
            raise Unauditable(f"{i.name}: expected its operands earlier in the schedule")
    thread = proto["execution_thread"]
    return Computation(proto["name"], sequence, by_id[proto["root_id"]], thread)


def _instruction(proto: dict, by_id, computations, devices: int, payloads) -> Instruction:
    name = proto["name"]
    try:
        operands = tuple(by_id[i] for i in proto["operand_ids"])
        called = tuple(computations[i] for i in proto["called_computation_ids"])
    except KeyError as e:
        raise Unauditable(f"{name}: expected operands and callees before it, got id {e}") from None
    if proto["shape"] is None:
        raise Unauditable(f"{name}: expected a shape, got none")
    config = proto["backend_config"]
    if proto["backend_config_payload"] is not None:
        payload = proto["backend_config_payload"]
        inline = payload["value"] or not payloads
        config = payload["value"] if inline else payloads[payload["id"]]
    return Instruction(
        name=name,
        opcode=proto["opcode"],
        shape=read_shape(proto["shape"], name),
        operands=operands,
        called=called,
        scope=(proto["metadata"] or {"op_name": ""})["op_name"],
        groups=device_groups(proto, 1, devices, name),
        backend_config=config.decode("utf-8", "replace"),
        attributes=proto,
    )
