"""What instructions call: the function that a reduction repeats, and XLA's own matrix products."""

from fcjax.audit.hlo.elementwise import is_float
from fcjax.audit.hlo.graph import Computation, Instruction

GEMMS = {"__cublas$gemm", "__cublas$lt$matmul"}
_DIMENSIONS = [f"{side}_{what}_dimensions" for side in ("lhs", "rhs")
               for what in ("contracting", "batch")]


def combiner(computation: Computation) -> str:
    """The opcode that it applies to its two scalar parameters; "" if it does anything else.

    Floats may be converted to other floats on the way, as XLA does with bf16.
    """

    def strip(i: Instruction) -> Instruction:
        if i.opcode != "convert" or not is_float(i.shape.dtype):
            return i
        return strip(i.operands[0]) if is_float(i.operands[0].shape.dtype) else i

    root = strip(computation.root)
    operands = [strip(o) for o in root.operands]
    plain = (
        [o.opcode for o in operands] == ["parameter", "parameter"]
        and {o["parameter_number"] for o in operands} == {0, 1}
        and len(computation.parameters) == 2
    )
    return root.opcode if plain else ""


def gemm_dimensions(i: Instruction) -> dict[str, tuple[int, ...]] | None:
    """Of a call of `GEMMS`, in the form of a dot's `dot_dimension_numbers`; None if it has none."""
    given = i.config().get("gemm_backend_config", {}).get("dot_dimension_numbers")
    if given is None:
        return None
    return {name: tuple(map(int, given.get(name, ()))) for name in _DIMENSIONS}
