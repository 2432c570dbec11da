"""In which types values enter, leave and cross: a wide or complex one has room for two numbers.

Inside a node a program may compute in any type: what leaves it again is rounded.
"""

from collections.abc import Iterator

from fcjax.audit.domain.roles import Complete, Public, Role, Signature, State
from fcjax.audit.hlo.graph import Module
from fcjax.audit.rules import traffic
from fcjax.audit.verdict import Violation

_FLOATS = {"f32", "bf16", "f16"}
# Beside the types of the state itself: statistics and, on CPU, sums of bf16; counts and token ids.
_SHARED = {"f32", "s32"}


def scan(module: Module, signature: Signature) -> Iterator[Violation]:
    """Inputs, results and operands of collectives whose type the signature does not allow."""
    inputs = [p.shape for p in module.entry.parameters]
    results = module.entry.root.shape.leaves()
    roles = *signature.parameters, *signature.results
    for shape, role in zip((*inputs, *results), roles, strict=False):  # `check` compares numbers
        allowed = _allowed(role)
        if allowed and shape.dtype not in allowed:
            yield Violation("wrong-type", f"{role.name}: expected {_words(allowed)}, got {shape}")
    wire = _SHARED.union(*(_allowed(r) for r in roles if isinstance(r, State | Complete)))
    for computation in traffic.reachable(module):
        for i in computation.instructions:
            sent = {o.shape.dtype for o in i.operands} if i.opcode in traffic.COLLECTIVES else set()
            if sent - wire:
                text = f"expected {_words(wire)} on the wire, got {_words(sent)}"
                yield Violation("wrong-type", text, line=module.line(i), scope=i.scope)


def _allowed(role: Role) -> set[str]:
    """Types of a value; none for any type."""
    if role.dtype:
        return {role.dtype}
    return set() if isinstance(role, Public) else _FLOATS


def _words(types: set[str]) -> str:
    return " or ".join(sorted(types))
