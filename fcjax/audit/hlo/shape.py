"""Shapes of values in a program: type, dimensions, layout and memory."""

import dataclasses

from fcjax.audit.hlo.proto import Unauditable

_DTYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16", 17: "token",
    18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz",
    24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4", 30: "s1",
    31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu", 35: "f6e3m2fn", 36: "f6e2m3fn",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Shape of one value.

    Attributes:
      dtype: "f32", ..., or "tuple", "token".
      dims: logical dimensions; empty for scalars and tuples.
      layout: dimensions from minor to major; None for tuples and tokens.
      memory: memory space; 0 is the device's main memory.
      elements: shapes of a tuple's elements.
    """

    dtype: str
    dims: tuple[int, ...] = ()
    layout: tuple[int, ...] | None = None
    memory: int = 0
    elements: tuple["Shape", ...] = ()

    def __str__(self):
        if self.dtype == "tuple":
            return f"({', '.join(map(str, self.elements))})"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"

    def leaves(self) -> tuple["Shape", ...]:
        """The shape itself, or those of all arrays and tokens in a tuple."""
        if self.dtype != "tuple":
            return (self,)
        return tuple(leaf for element in self.elements for leaf in element.leaves())


def read_shape(proto: dict, where: str) -> Shape:
    """A shape from its decoded message.

    Raises:
      Unauditable: a type that is not known, or a layout that is not plain.
    """
    dtype = _DTYPES.get(proto["element_type"])
    if dtype is None:
        raise Unauditable(f"{where}: expected a known element type, got {proto['element_type']}")
    if any(proto["is_dynamic_dimension"]):
        raise Unauditable(f"{where}: expected static dimensions, got {proto['dimensions']}")
    layout = proto["layout"]
    if layout and (
        layout["tiles"] or layout["split_configs"] or layout["physical_shape"]
        or layout["dynamic_shape_metadata_prefix_bytes"]
    ):
        raise Unauditable(f"{where}: expected a plain layout, got a tiled, split or sparse one")
    dims = proto["dimensions"]
    if dtype in ("tuple", "token", "opaque"):
        elements = tuple(read_shape(s, where) for s in proto["tuple_shapes"])
        return Shape(dtype, elements=elements)
    order = layout["minor_to_major"] if layout else tuple(reversed(range(len(dims))))
    if sorted(order) != list(range(len(dims))):
        raise Unauditable(f"{where}: expected a layout of {len(dims)} dimensions, got {order}")
    return Shape(dtype, dims, order, layout["memory_space"] if layout else 0)
