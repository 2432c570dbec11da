"""Which devices take part in a collective, for every spelling of `replica_groups`.

HLO has three spellings (`tests/audit/hlo/test_groups.py` parses each): explicit lists ``{{0,1}}``,
iota tiles ``[2,2]<=[4]T(1,0)``, and mesh axes ``mesh['a'=2,'b'=2] {'b'}`` with optional device ids
and sub-axes ``'a':(2)2``. An explicit list may be empty, which means one group of all. Sources:
xla/hlo/ir/replica_group.h, collective_device_list.h and mesh_and_axis.h.
"""

import math

import numpy as np

from fcjax.audit.hlo.proto import Unauditable

Groups = tuple[tuple[int, ...], ...]


def replica_groups(proto: dict, devices: int, where: str) -> Groups:
    """Explicit groups of an instruction; empty if it has none.

    Args:
      proto: the decoded Instruction message.
      devices: how many devices run the program.
      where: the instruction's name, for errors.

    Raises:
      Unauditable: groups that are not a partition of some of the devices, or a spelling that says
        two things at once.
    """
    spelled = [
        read(proto[field])
        for field, read in _SPELLINGS.items()
        if proto[field] is not None and proto[field] != ()
    ]
    if not spelled:
        return ()
    groups = spelled[0]
    # The deprecated field may repeat the new one; two different answers would be ambiguous.
    if any(other != groups for other in spelled):
        raise Unauditable(f"{where}: expected one list of replica groups, got {spelled}")
    groups = groups or (tuple(range(devices)),)
    ids = [device for group in groups for device in group]
    if len(set(ids)) != len(ids) or not all(0 <= i < devices for i in ids) or () in groups:
        raise Unauditable(f"{where}: expected groups of {devices} devices, got {groups}")
    return groups


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
