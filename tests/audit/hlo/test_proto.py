"""The field numbers of `proto` are those of the installed jaxlib, by the descriptors inside it."""

import mmap
import pathlib

import jaxlib
import pytest

from fcjax.audit.hlo import proto
from fcjax.audit.hlo.proto import MESSAGES, SKIP, Unauditable, decode

# Our short names; nested messages by their path.
NAMES = {
    "HloModuleProto": "HloModuleProto",
    "Computation": "HloComputationProto",
    "Instruction": "HloInstructionProto",
    "Literal": "LiteralProto",
    "Shape": "ShapeProto",
    "Layout": "LayoutProto",
    "Metadata": "OpMetadata",
    "ProgramShape": "ProgramShapeProto",
    "Notes": "FrontendAttributes",
    "Note": "FrontendAttributes.MapEntry",
    "Slice": "HloInstructionProto.SliceDimensions",
    "Window": "Window",
    "WindowDim": "WindowDimension",
    "Padding": "PaddingConfig",
    "PaddingDim": "PaddingConfig.PaddingConfigDimension",
    "Dot": "DotDimensionNumbers",
    "Gather": "GatherDimensionNumbers",
    "Scatter": "ScatterDimensionNumbers",
    "Pair": "SourceTarget",
    "Group": "ReplicaGroup",
    "Groups": "CollectiveDeviceListProto",
    "IotaGroups": "IotaReplicaGroupListProto",
    "MeshGroups": "MeshAxesReplicaGroupListProto",
    "Mesh": "MeshProto",
    "MeshAxis": "MeshProto.MeshAxis",
    "AxisRef": "AxisRefProto",
    "SubAxis": "AxisRefProto.SubAxis",
    "Sharding": "OpSharding",
    "NamedSharding": "NamedShardingProto",
    "DimSharding": "NamedShardingProto.DimensionSharding",
    "IotaTransform": "MeshProto.IotaTransform",
    "Schedule": "HloScheduleProto",
    "Ids": "HloScheduleProto.InstructionSequence",
    "Aliases": "HloInputOutputAliasProto",
    "Alias": "HloInputOutputAliasProto.AliasEntryProto",
    "Donors": "HloBufferDonorProto",
    "Donor": "HloBufferDonorProto.BufferDonorEntryProto",
}


def _fields(data: bytes):
    """(number, value) of each field of a message; stops at what is none."""
    pos, view = 0, memoryview(data)
    while pos < len(data):
        try:
            key, pos = proto._varint(view, pos)
            number, wire = key >> 3, key & 7
            if wire == 0:
                value, pos = proto._varint(view, pos)
            elif wire == 2:
                n, pos = proto._varint(view, pos)
                value, pos = bytes(view[pos : pos + n]), pos + n
            else:
                return
        except (IndexError, Unauditable):
            return
        yield number, value


def _messages(data: bytes, prefix: str, found: dict) -> None:
    """google.protobuf.DescriptorProto: 1 name, 2 fields, 3 nested messages."""
    fields = list(_fields(data))
    name = prefix + next(v for n, v in fields if n == 1).decode()
    found[name] = {}
    for number, value in fields:
        if number == 2:  # FieldDescriptorProto: 1 name, 3 number
            field = dict(_fields(value))
            found[name][field[3]] = field[1].decode()
        elif number == 3:
            _messages(value, f"{name}.", found)


@pytest.fixture(scope="module")
def descriptors():
    """{message: {number: field name}} of hlo.proto and xla_data.proto."""
    library = pathlib.Path(jaxlib.__file__).with_name("libjax_common.so")
    found: dict[str, dict[int, str]] = {}
    with (
        open(library, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        for name in (b"xla/service/hlo.proto", b"xla/xla_data.proto"):
            start = data.find(b"\n" + bytes([len(name)]) + name + b"\x12\x03xla")
            assert start >= 0, name
            for number, value in _fields(data[start : start + 100_000]):
                if number > 12:  # behind the FileDescriptorProto
                    break
                if number == 4:
                    _messages(value, "", found)
    return found


@pytest.mark.parametrize("ours", NAMES)
def test_the_numbers_are_those_of_this_jaxlib(ours, descriptors):
    theirs = descriptors[NAMES[ours]]
    for number, (name, _) in MESSAGES[ours].items():
        # A field that only one of the two supported versions has is in the list of both.
        assert theirs.get(number, name) == name, number
    assert set(theirs) <= set(MESSAGES[ours]), "a field of this jaxlib is not listed"


def test_every_message_is_compared_or_small():
    assert set(MESSAGES) - set(NAMES) == {"Payload", "Sequence"}


def _field(number: int, wire: int, data: bytes) -> bytes:
    return bytes([number << 3 | wire]) + data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (_field(15, 2, b"\x00") + b"\xff", "well-formed|more bytes|known field"),
        (_field(1, 0, b"\x05"), "expected a str, got wire type 0"),
        (_field(1, 2, b"\x05ab"), "3 more bytes"[2:]),
        (_field(1, 3, b""), "wire type"),
        (b"\xf8\x0f\x01", "known field, got field 255"),
        (b"\xff" * 11, "varint"),
        (_field(1, 2, b"\x02\xff\xfe"), "well-formed"),
    ],
)
def test_what_is_not_understood_is_refused(data, words):
    with pytest.raises(Unauditable, match=words):
        decode(data)


def test_defaults_and_repeated_fields():
    assert decode(b"", "Slice") == {"start": 0, "limit": 0, "stride": 0}
    packed, single = b"\x0a\x02\x05\x07", b"\x08\x09"
    assert decode(packed + single, "Group") == {"replica_ids": (5, 7, 9)}
    minus_one = b"\x08" + b"\xff" * 9 + b"\x01"
    assert decode(minus_one, "Slice")["start"] == -1
    assert all(kind == SKIP or name for m in MESSAGES.values() for name, kind in m.values())
