"""Instructions and values as a program would have them, made by hand."""

from fcjax.audit.domain.roles import Role, Signature, tensor
from fcjax.audit.domain.values import Value
from fcjax.audit.hlo.graph import Computation, Instruction, Shape, parse
from fcjax.audit.provenance import entry_value, walk


def array(*dims, dtype="f32") -> Shape:
    return Shape(dtype, dims, tuple(reversed(range(len(dims)))))


def instruction(opcode, *dims, dtype="f32", **attributes) -> Instruction:
    shape = array(*dims, dtype=dtype)
    return Instruction("i", opcode, shape, (), (), "", (), "", attributes)


def value(role: Role, dtype="f32") -> Value:
    return entry_value(array(*role.shape, dtype=dtype), role)


def made(kind, *args) -> Value:
    """The entry value of a role, for example ``made(State, "x", "BD", (3, 12), "D")``."""
    return value(tensor(kind, *args))


def computation(text: str) -> Computation:
    """The first computation of an HLO module."""
    return parse(text).computations[0]


def results(text: str, *roles: Role) -> tuple[Value, ...]:
    """What the results of an HLO module are, if its parameters have these roles."""
    return walk(parse(text), Signature(1, roles, ())).results
