"""Which block of an input each device holds, as the compiler noted it on the parameter."""

import numpy as np

from fcjax.audit.hlo.groups import iota, mesh_devices
from fcjax.audit.hlo.proto import Unauditable

Block = tuple[int, ...]  # its number along each dimension

_REPLICATED, _TILED = 0, 3  # OpSharding.Type


def blocks(sharding: dict, rank: int, devices: int, where: str) -> tuple[Block, ...]:
    """The block that each device holds; devices of the same block hold the same.

    Args:
      sharding: the decoded message.
      rank: dimensions of the array.
      devices: how many run the program.
      where: the parameter's name, for errors.

    Raises:
      Unauditable: a sharding that cuts no plain array into equal blocks.
    """
    if sharding["named_sharding"] is not None:
        tiled = _named(sharding["named_sharding"], rank, where)
    elif sharding["type"] == _REPLICATED:
        return ((0,) * rank,) * devices
    elif sharding["type"] == _TILED:
        dims, tiled = sharding["tile_assignment_dimensions"], None
        ids = list(sharding["tile_assignment_devices"])
        if ids and len(ids) == np.prod(dims):
            tiled = np.array(ids).reshape(dims)
        elif not ids:
            reshape, perm = sharding["iota_reshape_dims"], sharding["iota_transpose_perm"]
            tiled = iota(dims, reshape, perm, where)
    else:
        text = f"{where}: expected a plain tiled sharding, got type {sharding['type']}"
        raise Unauditable(text)
    # Dimensions after those of the array number the copies of a block.
    if tiled is None or tiled.ndim < rank or sorted(tiled.flat) != list(range(devices)):
        raise Unauditable(f"{where}: expected a block of {rank} dimensions for each of {devices}")
    found = sorted((int(device), at[:rank]) for at, device in np.ndenumerate(tiled))
    return tuple(at for _, at in found)


def _named(named: dict, rank: int, where: str) -> np.ndarray:
    """Device ids by block, with one more dimension for copies."""
    mesh = mesh_devices(named["mesh"])
    axes = [d["axes"] for d in named["dim_shardings"]] or [()] * rank
    plain = not named["unreduced_axes"] and not any(r["sub_axis_info"] for a in axes for r in a)
    used = [r["mesh_axis_index"] for refs in axes for r in refs]
    if not plain or len(axes) != rank or not set(used) <= set(range(mesh.ndim)):
        raise Unauditable(f"{where}: expected whole mesh axes in its sharding, got {named}")
    rest = [d for d in range(mesh.ndim) if d not in used]
    sizes = [int(np.prod([mesh.shape[r["mesh_axis_index"]] for r in refs])) for refs in axes]
    try:
        return mesh.transpose(used + rest).reshape(*sizes, -1)
    except ValueError as e:
        raise Unauditable(f"{where}: expected a mesh axis once, got {e}") from None
