"""The blocks that devices hold, by the notes on a program's parameters, against JAX's own."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from fcjax.audit.hlo.graph import Unauditable, parse
from fcjax.audit.hlo.sharding import blocks


@pytest.mark.parametrize(
    "spec",
    [(), ("a",), ("b",), (None, "a"), ("a", "b"), ("b", "a"), (("a", "b"),), (("b", "a"), None)],
)
def test_blocks_of_a_parameter(spec):
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2,
                         devices=jax.devices()[:4])
    sharding = jax.NamedSharding(mesh, jax.P(*spec))
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=sharding)
    (p,) = parse(jax.jit(lambda x: x + 1).lower(x).compile().as_text()).entry.parameters
    index = sharding.devices_indices_map((8, 8))
    starts = [[s.indices(8)[0] // n for s, n in zip(index[d], p.shape.dims, strict=True)]
              for d in mesh.devices.flat]
    assert blocks(p["sharding"], 2, 4, "x") == tuple(map(tuple, starts))
    with pytest.raises(Unauditable):
        blocks(p["sharding"] | {"type": 1, "named_sharding": None}, 2, 4, "x")
