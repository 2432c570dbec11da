"""A strict reader of the HloModuleProto wire format: only the messages that the audit needs.

jaxlib ships no Python classes for ``xla/service/hlo.proto``, but XLA itself serializes any module
that it has parsed, and the numbers of protobuf fields never change their meaning. Reading those
bytes gives shapes, layouts, operands, called computations, replica groups and shardings without a
second grammar for HLO text. The numbers below are those of hlo.proto and xla_data.proto in jaxlib
0.10.2 and 0.12.0 (`tests/audit/hlo/test_proto.py` compares them with the descriptors inside the
installed jaxlib).

It is strict: a field number that is not listed, or a wire type that does not fit, is an
`Unauditable` error, because a field that we do not know may change what an instruction does.
"""


class Unauditable(ValueError):
    """The program holds something that the audit does not understand, so it has no verdict."""


# Kinds of a field. A capital letter is a repeated field; a message kind is the message's name, and
# "[Name]" is a repeated message. "-" is known and not needed: it is skipped, whatever it holds.
INT, BOOL, STR, BYTES, INTS, BYTESS, SKIP = (
    "int", "bool", "str", "bytes", "ints", "bytess", "-",
)

MESSAGES = {
    "HloModuleProto": {
        1: ("name", STR), 2: ("entry_computation_name", STR), 3: ("computations", "[Computation]"),
        4: ("host_program_shape", "ProgramShape"), 5: ("id", SKIP),
        6: ("entry_computation_id", INT),
        7: ("schedule", "Schedule"), 8: ("input_output_alias", "Aliases"),
        10: ("cross_program_prefetches", BYTESS), 11: ("is_dynamic", BOOL),
        12: ("spmd_output_sharding", SKIP), 13: ("profile_info", SKIP),
        14: ("spmd_parameters_shardings", SKIP), 15: ("device_assignment", SKIP),
        16: ("use_auto_spmd_partitioning", SKIP), 17: ("stack_frame_index", SKIP),
        18: ("buffer_donor", "Donors"), 19: ("frontend_attributes", "Notes"),
        20: ("original_value_recovery_table", SKIP), 21: ("device_type", SKIP),
        22: ("payloads", BYTESS), 23: ("pjrt_id", SKIP), 24: ("debug_attributes", SKIP),
        25: ("backend_config", SKIP),
    },
    "Computation": {
        1: ("name", STR), 2: ("instructions", "[Instruction]"), 4: ("program_shape", SKIP),
        5: ("id", INT), 6: ("root_id", INT), 7: ("is_fusion_computation", BOOL),
        8: ("execution_thread", STR), 9: ("backend_config", SKIP),
    },
    "Instruction": {
        1: ("name", STR), 2: ("opcode", STR), 3: ("shape", "Shape"), 7: ("metadata", "Metadata"),
        8: ("literal", "Literal"), 9: ("parameter_number", INT), 11: ("fusion_kind", STR),
        13: ("tuple_index", INT), 14: ("dimensions", INTS), 15: ("window", "Window"),
        16: ("convolution_dimension_numbers", SKIP), 17: ("slice_dimensions", "[Slice]"),
        18: ("exponent_bits", INT), 19: ("mantissa_bits", INT), 20: ("dynamic_slice_sizes", INTS),
        21: ("padding_config", "Padding"), 22: ("outfeed_config", SKIP), 23: ("distribution", SKIP),
        24: ("epsilon", SKIP), 25: ("feature_index", SKIP), 26: ("channel_id", INT),
        27: ("infeed_config", SKIP), 28: ("custom_call_target", STR), 29: ("outfeed_shape", SKIP),
        30: ("dot_dimension_numbers", "Dot"), 31: ("fft_type", SKIP), 32: ("fft_length", SKIP),
        33: ("gather_dimension_numbers", "Gather"), 34: ("gather_slice_sizes", INTS),
        35: ("id", INT), 36: ("operand_ids", INTS), 37: ("control_predecessor_ids", INTS),
        38: ("called_computation_ids", INTS), 40: ("sharding", "Sharding"),
        43: ("backend_config", BYTES), 45: ("all_reduce_id", INT), 47: ("is_host_transfer", BOOL),
        48: ("scatter_dimension_numbers", "Scatter"), 49: ("replica_groups", "[Group]"),
        50: ("feature_group_count", SKIP), 51: ("precision_config", SKIP),
        52: ("source_target_pairs", "[Pair]"), 54: ("domain_entry_sharding", SKIP),
        55: ("domain_exit_sharding", SKIP), 56: ("constrain_layout", BOOL),
        57: ("operand_shapes_with_layout", SKIP), 58: ("batch_group_count", SKIP),
        59: ("triangular_solve_options", SKIP), 60: ("is_stable", BOOL),
        61: ("parameter_replication", SKIP), 62: ("cholesky_options", SKIP),
        63: ("comparison_direction", STR), 65: ("custom_call_has_side_effect", BOOL),
        66: ("delta", SKIP), 67: ("indices_are_sorted", BOOL), 68: ("frontend_attributes", "Notes"),
        69: ("unique_indices", BOOL), 70: ("rng_algorithm", SKIP),
        71: ("use_global_device_ids", BOOL), 72: ("comparison_type", STR),
        73: ("is_cross_program_prefetch", BOOL), 74: ("output_operand_aliasing", SKIP),
        75: ("padding_type", SKIP), 76: ("custom_call_schedule", SKIP),
        77: ("custom_call_api_version", SKIP), 79: ("async_execution_thread", STR),
        80: ("cross_program_prefetch_index", SKIP), 81: ("k", INT), 82: ("statistics_viz", SKIP),
        85: ("largest", BOOL), 87: ("collective_device_list", "Groups"),
        88: ("original_value", SKIP), 89: ("is_composite", BOOL),
        90: ("ragged_dot_dimension_numbers", SKIP), 91: ("result_accuracy", SKIP),
        92: ("iota_collective_device_list", "IotaGroups"),
        93: ("mesh_axes_replica_group_list", "MeshGroups"), 94: ("is_reverse", BOOL),
        95: ("num_carries", SKIP), 96: ("is_associative", SKIP), 97: ("conv_kind", SKIP),
        98: ("sparsity_config", SKIP), 99: ("backend_config_payload", "Payload"),
        100: ("has_dynamic_root", BOOL), 101: ("block_scaling_config", SKIP),
        102: ("comparison_order", STR), 103: ("shuffle_mode", SKIP),
    },
    # Floats are packed as they stand in memory, so they are kept as bytes.
    "Literal": {
        1: ("shape", "Shape"), 2: ("preds", INTS), 3: ("u8s", BYTES), 4: ("s32s", INTS),
        5: ("s64s", INTS), 6: ("u32s", INTS), 7: ("u64s", INTS), 8: ("f32s", BYTES),
        9: ("f64s", BYTES), 11: ("f16s", BYTES), 13: ("bf16s", BYTES), 15: ("s8s", BYTES),
        16: ("u16s", BYTES), 17: ("s16s", BYTES), 10: ("tuple_literals", SKIP),
        12: ("c64s", SKIP), 14: ("sparse_indices", SKIP), 18: ("c128s", SKIP),
        19: ("f8e5m2s", SKIP), 20: ("f8e4m3fns", SKIP), 21: ("s4s", SKIP), 22: ("u4s", SKIP),
        23: ("f8e4m3b11fnuzs", SKIP), 24: ("f8e5m2fnuzs", SKIP), 25: ("f8e4m3fnuzs", SKIP),
        26: ("s2s", SKIP), 27: ("u2s", SKIP), 28: ("f8e4m3s", SKIP), 29: ("f8e3m4s", SKIP),
        30: ("s1s", SKIP), 31: ("u1s", SKIP), 32: ("f4e2m1fns", SKIP), 33: ("f8e8m0fnus", SKIP),
        34: ("dynamic_sizes", SKIP), 35: ("f6e3m2fns", SKIP), 36: ("f6e2m3fns", SKIP),
    },
    "Shape": {
        2: ("element_type", INT), 3: ("dimensions", INTS), 4: ("tuple_shapes", "[Shape]"),
        5: ("layout", "Layout"), 6: ("is_dynamic_dimension", INTS),
    },
    "Layout": {
        1: ("minor_to_major", INTS), 6: ("tiles", BYTESS), 7: ("element_size_in_bits", INT),
        8: ("memory_space", INT), 9: ("dim_level_types", SKIP), 10: ("physical_shape", BYTES),
        11: ("index_primitive_type", SKIP), 12: ("pointer_primitive_type", SKIP),
        13: ("dim_unique", SKIP), 14: ("dim_ordered", SKIP),
        15: ("dynamic_shape_metadata_prefix_bytes", INT),
        16: ("tail_padding_alignment_in_elements", INT), 17: ("split_configs", BYTESS),
    },
    "Metadata": {
        1: ("op_type", STR), 2: ("op_name", STR), 3: ("source_file", SKIP),
        4: ("source_line", SKIP), 5: ("profile_type", SKIP),
        8: ("size_of_generated_code_in_bytes", SKIP),
        9: ("size_of_memory_working_set_in_bytes", SKIP), 10: ("profile_info", SKIP),
        12: ("deduplicated_name", SKIP), 15: ("stack_frame_id", SKIP),
        16: ("scheduling_name", SKIP), 17: ("source_end_line", SKIP), 18: ("source_column", SKIP),
        19: ("source_end_column", SKIP), 20: ("metadata_payload", SKIP),
    },
    "ProgramShape": {
        1: ("parameters", "[Shape]"), 2: ("result", "Shape"), 3: ("parameter_names", SKIP),
    },
    "Notes": {1: ("map", "[Note]")},
    "Note": {1: ("key", STR), 2: ("value", STR)},
    "Slice": {1: ("start", INT), 2: ("limit", INT), 3: ("stride", INT)},
    "Window": {1: ("dimensions", "[WindowDim]")},
    "WindowDim": {
        1: ("size", INT), 2: ("stride", INT), 3: ("padding_low", INT), 4: ("padding_high", INT),
        5: ("window_dilation", INT), 6: ("base_dilation", INT), 7: ("window_reversal", BOOL),
    },
    "Padding": {1: ("dimensions", "[PaddingDim]")},
    "PaddingDim": {
        1: ("edge_padding_low", INT), 2: ("edge_padding_high", INT), 3: ("interior_padding", INT),
    },
    "Dot": {
        1: ("lhs_contracting_dimensions", INTS), 2: ("rhs_contracting_dimensions", INTS),
        3: ("lhs_batch_dimensions", INTS), 4: ("rhs_batch_dimensions", INTS),
    },
    "Gather": {
        1: ("offset_dims", INTS), 2: ("collapsed_slice_dims", INTS), 3: ("start_index_map", INTS),
        4: ("index_vector_dim", INT), 5: ("operand_batching_dims", INTS),
        6: ("start_indices_batching_dims", INTS),
    },
    "Scatter": {
        1: ("update_window_dims", INTS), 2: ("inserted_window_dims", INTS),
        3: ("scatter_dims_to_operand_dims", INTS), 4: ("index_vector_dim", INT),
        5: ("input_batching_dims", INTS), 6: ("scatter_indices_batching_dims", INTS),
    },
    "Pair": {1: ("source", INT), 2: ("target", INT)},
    "Group": {1: ("replica_ids", INTS)},
    "Groups": {1: ("replica_groups", "[Group]")},
    "IotaGroups": {
        1: ("num_replica_groups", INT), 2: ("num_devices_per_group", INT),
        3: ("iota_reshape_dims", INTS), 4: ("iota_transpose_perm", INTS),
    },
    "MeshGroups": {1: ("mesh", "Mesh"), 2: ("axes", "[AxisRef]")},
    "Mesh": {
        1: ("axes", "[MeshAxis]"), 2: ("device_ids", INTS), 3: ("iota_transform", "IotaTransform"),
    },
    "MeshAxis": {1: ("name", STR), 2: ("size", INT)},
    "IotaTransform": {1: ("reshape_dims", INTS), 2: ("transpose_perm", INTS)},
    "AxisRef": {1: ("mesh_axis_index", INT), 2: ("sub_axis_info", "SubAxis")},
    "SubAxis": {1: ("pre_size", INT), 2: ("size", INT)},
    "Sharding": {
        1: ("type", INT), 2: ("tile_shape", SKIP), 3: ("tile_assignment_dimensions", INTS),
        4: ("tile_assignment_devices", INTS), 5: ("tuple_shardings", "[Sharding]"),
        6: ("replicate_on_last_tile_dim", BOOL), 7: ("metadata", SKIP), 8: ("last_tile_dims", INTS),
        9: ("iota_reshape_dims", INTS), 10: ("iota_transpose_perm", INTS),
        11: ("is_shard_group", SKIP), 12: ("shard_group_id", SKIP), 13: ("shard_group_type", SKIP),
        14: ("named_sharding", "NamedSharding"),
    },
    "NamedSharding": {
        2: ("mesh", "Mesh"), 3: ("dim_shardings", "[DimSharding]"),
        4: ("replicated_axes", "[AxisRef]"), 5: ("unreduced_axes", "[AxisRef]"),
        6: ("metadata", SKIP), 7: ("manual_axes", "[AxisRef]"), 8: ("reduction_op", SKIP),
    },
    "DimSharding": {1: ("axes", "[AxisRef]"), 2: ("is_closed", SKIP)},
    "Payload": {1: ("value", BYTES), 2: ("id", INT)},
    "Schedule": {1: ("sequences", "[Sequence]")},
    "Sequence": {1: ("key", INT), 2: ("value", "Ids")},
    "Ids": {1: ("instruction_ids", INTS)},
    "Aliases": {1: ("entries", "[Alias]")},
    "Alias": {
        1: ("output_shape_index", INTS), 2: ("parameter_number", INT),
        3: ("parameter_shape_index", INTS), 4: ("kind", INT),
    },
    "Donors": {1: ("entries", "[Donor]")},
    "Donor": {1: ("parameter_number", INT), 2: ("parameter_shape_index", INTS)},
}

_EMPTY = {INT: 0, BOOL: False, STR: "", BYTES: b""}


def _is_list(kind: str) -> bool:
    return kind in (INTS, BYTESS) or kind.startswith("[")


# What a message holds when none of its fields is on the wire (proto3 leaves out default values).
_DEFAULTS = {
    message: {
        name: () if _is_list(kind) else _EMPTY.get(kind)
        for name, kind in fields.values()
        if kind != SKIP
    }
    for message, fields in MESSAGES.items()
}


def decode(data: bytes, message: str = "HloModuleProto") -> dict:
    """Decode one message into a dict by field name; an absent sub-message is None.

    Raises:
      Unauditable: an unknown field, a wire type that does not fit, or truncated data.
    """
    try:
        return _decode(memoryview(data), message)
    except (IndexError, UnicodeDecodeError) as e:
        raise Unauditable(f"{message}: expected well-formed protobuf bytes, got {e}") from None


def _varint(data: memoryview, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > 63:
            raise Unauditable("protobuf: expected a varint of at most 10 bytes, got a longer one")


def _signed(value: int) -> int:
    """int32 and int64 are sent as 64-bit two's complement."""
    return value - (1 << 64) if value >> 63 else value


def _decode(data: memoryview, message: str) -> dict:
    fields = MESSAGES[message]
    out = dict(_DEFAULTS[message])
    pos, end = 0, len(data)
    while pos < end:
        key, pos = _varint(data, pos)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, pos = _varint(data, pos)
        elif wire in (1, 2, 5):
            size = 8 if wire == 1 else 4
            if wire == 2:
                size, pos = _varint(data, pos)
            if pos + size > end:
                raise Unauditable(f"{message}: expected {size} more bytes, got {end - pos}")
            value = data[pos : pos + size]
            pos += size
        else:
            raise Unauditable(f"{message}: expected wire type 0, 1, 2 or 5, got {wire}")
        if number not in fields:
            raise Unauditable(f"{message}: expected a known field, got field {number}")
        name, kind = fields[number]
        if kind == SKIP:
            continue
        if kind in (INT, BOOL):
            fits = wire == 0
        else:  # no field that is needed is a single number of fixed width
            fits = wire == 2 or (wire == 0 and kind == INTS)
        if not fits:
            raise Unauditable(f"{message}.{name}: expected a {kind}, got wire type {wire}")
        if kind == INT:
            out[name] = _signed(value)
        elif kind == BOOL:
            out[name] = bool(value)
        elif kind == STR:
            out[name] = str(value, "utf-8")
        elif kind == BYTES:
            out[name] = bytes(value)
        elif kind == BYTESS:
            out[name] += (bytes(value),)
        elif kind == INTS:
            out[name] += (_signed(value),) if wire == 0 else _packed(value)
        elif kind.startswith("["):
            # A list while it grows: a computation has thousands of instructions.
            if not out[name]:
                out[name] = []
            out[name].append(_decode(value, kind[1:-1]))
        else:
            out[name] = _decode(value, kind)
    return out


def _packed(data: memoryview) -> tuple[int, ...]:
    values, pos = [], 0
    while pos < len(data):
        value, pos = _varint(data, pos)
        values.append(_signed(value))
    return tuple(values)
