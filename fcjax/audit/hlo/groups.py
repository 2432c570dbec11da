"""Which devices take part in a collective: what its ids count, for every spelling of its groups.

The ids in `replica_groups` count replicas, partitions or devices. Which of them it is depends on
the opcode, on whether there is a channel and on `use_global_device_ids` (XLA's four modes,
xla/service/collective_ops_utils.h):

    opcode                                 channel  global ids  ids count   with them go
    all-gather, all-reduce, reduce-scatter no       no          replicas    the own partition
                                           yes      no          replicas    all their partitions
                                           yes      yes         devices     -
    all-to-all, collective-broadcast       no       -           replicas    the own partition
                                           yes      -           partitions  the own replica

So a group of one replica is a group of all devices, where there is a channel and no global ids.
`tests/audit/hlo/test_group_modes.py` runs each line and looks whose data arrived where.

HLO has three spellings (`tests/audit/hlo/test_groups.py` parses each): explicit lists ``{{0,1}}``,
iota tiles ``[2,2]<=[4]T(1,0)``, and mesh axes ``mesh['a'=2,'b'=2] {'b'}`` with optional device ids
and sub-axes ``'a':(2)2``. An explicit list may be empty, which means one group of all. Sources:
xla/hlo/ir/replica_group.h, collective_device_list.h and mesh_and_axis.h.
"""

import math

import numpy as np

from fcjax.audit.hlo.proto import Unauditable

Groups = tuple[tuple[int, ...], ...]

# Collectives that say whether their ids are global, and those that cannot.
_MAY_BE_GLOBAL = {
    "all-gather", "all-gather-start", "all-reduce", "all-reduce-start", "reduce-scatter",
}
_NEVER_GLOBAL = {"all-to-all", "collective-broadcast", "ragged-all-to-all"}


def device_groups(proto: dict, replicas: int, partitions: int, where: str) -> Groups:
    """The devices of each group of a collective, in order; () if the instruction is none.

    Device r * partitions + p runs replica r of partition p. What `collective-permute` does is in
    its pairs, so it has no groups.

    Args:
      proto: the decoded Instruction message.
      replicas, partitions: of the program.
      where: the instruction's name, for errors.

    Raises:
      Unauditable: groups that are not a partition of what they count, a spelling that says two
        things at once, or groups where there may be none.
    """
    opcode, channel, flat = proto["opcode"], proto["channel_id"] > 0, proto["use_global_device_ids"]
    groups = _spelled(proto, where)
    if opcode not in _MAY_BE_GLOBAL | _NEVER_GLOBAL:
        if groups:
            raise Unauditable(f"{where}: expected no replica groups on {opcode}, got {groups}")
        return ()
    if flat and (opcode in _NEVER_GLOBAL or not channel or not groups):
        raise Unauditable(f"{where}: expected global ids only with a channel and explicit groups")
    devices = np.arange(replicas * partitions).reshape(replicas, partitions)
    if flat:
        blocks = [devices.reshape(-1, 1)]
    elif not channel:
        blocks = [devices[:, p : p + 1] for p in range(partitions)]
    elif opcode in _MAY_BE_GLOBAL:
        blocks = [devices]
    else:
        blocks = [devices[r, :, None] for r in range(replicas)]
    count = len(blocks[0])
    groups = groups or (tuple(range(count)),)
    ids = [i for group in groups for i in group]
    if sorted(ids) != list(range(count)) or () in groups:
        raise Unauditable(f"{where}: expected each id below {count} in one group, got {groups}")
    return tuple(
        tuple(block[list(group)].reshape(-1).tolist()) for group in groups for block in blocks
    )


def _spelled(proto: dict, where: str) -> Groups:
    """Groups of ids as the program has them; () for none, and for one of all."""
    spelled = [
        read(proto[field])
        for field, read in _SPELLINGS.items()
        if proto[field] is not None and proto[field] != ()
    ]
    # The deprecated field may repeat the new one; two different answers would be ambiguous.
    if any(other != spelled[0] for other in spelled):
        raise Unauditable(f"{where}: expected one list of replica groups, got {spelled}")
    return spelled[0] if spelled else ()


def iota(dims, reshape_dims, transpose_perm, where: str) -> np.ndarray:
    """Device ids of ``[dims]<=[reshape_dims]T(transpose_perm)``, as an array of shape `dims`."""
    try:
        ids = np.arange(math.prod(reshape_dims)).reshape(reshape_dims)
        return ids.transpose(transpose_perm or None).reshape(dims)
    except ValueError as e:
        raise Unauditable(f"{where}: expected a device tiling, got {e}") from None


def _explicit(groups) -> Groups:
    return tuple(group["replica_ids"] for group in groups)


def _from_iota(g: dict) -> Groups:
    shape = (g["num_replica_groups"], g["num_devices_per_group"])
    ids = iota(shape, g["iota_reshape_dims"], g["iota_transpose_perm"], "replica_groups")
    return tuple(map(tuple, ids.tolist()))


def mesh_devices(mesh: dict) -> np.ndarray:
    """Device ids of a mesh, one array dimension per mesh axis."""
    sizes = [axis["size"] for axis in mesh["axes"]]
    if mesh["device_ids"] and len(mesh["device_ids"]) == math.prod(sizes):
        return np.array(mesh["device_ids"]).reshape(sizes)
    if mesh["device_ids"]:
        raise Unauditable(f"mesh: expected {math.prod(sizes)} device ids, got {mesh['device_ids']}")
    transform = mesh["iota_transform"]
    if transform is None:
        return np.arange(math.prod(sizes)).reshape(sizes)
    return iota(sizes, transform["reshape_dims"], transform["transpose_perm"], "mesh")


def _from_mesh(g: dict) -> Groups:
    """One group for each setting of the mesh axes that are not named.

    A sub-axis (m)k of an axis of size n is the middle one of its factors [m, k, n / (m k)].
    """
    if not g["axes"]:
        raise Unauditable("replica_groups: expected mesh axes to reduce over, got none")
    ids = mesh_devices(g["mesh"])
    factors = [[n] for n in ids.shape]
    wanted = []  # (mesh axis, index of the factor)
    for ref in g["axes"]:
        axis, sub = ref["mesh_axis_index"], ref["sub_axis_info"]
        if not 0 <= axis < ids.ndim or len(factors[axis]) > 1:
            raise Unauditable(f"replica_groups: expected each mesh axis once, got {g['axes']}")
        if sub is None:
            wanted.append((axis, 0))
            continue
        rest = ids.shape[axis] // max(sub["pre_size"] * sub["size"], 1)
        factors[axis] = [sub["pre_size"], sub["size"], rest]
        wanted.append((axis, 1))
        if math.prod(factors[axis]) != ids.shape[axis]:
            raise Unauditable(f"replica_groups: sub-axis {sub} does not divide {ids.shape[axis]}")
    offsets = np.cumsum([0] + [len(f) for f in factors])
    inner = [int(offsets[axis]) + i for axis, i in wanted]
    if len(set(inner)) != len(inner):
        raise Unauditable(f"replica_groups: expected each mesh axis once, got {g['axes']}")
    flat = ids.reshape([n for f in factors for n in f])
    outer = [d for d in range(flat.ndim) if d not in inner]
    size = math.prod(flat.shape[d] for d in inner)
    return tuple(map(tuple, flat.transpose(outer + inner).reshape(-1, size).tolist()))


_SPELLINGS = {
    "replica_groups": _explicit,
    "collective_device_list": lambda g: _explicit(g["replica_groups"]),
    "iota_collective_device_list": _from_iota,
    "mesh_axes_replica_group_list": _from_mesh,
}
