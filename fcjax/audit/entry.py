"""Are a program's inputs the shards and blocks that the caller says they are?"""

from collections.abc import Iterator

from fcjax.audit.domain.roles import Complete, Role, Signature, State
from fcjax.audit.hlo.graph import Instruction, Module
from fcjax.audit.hlo.sharding import blocks
from fcjax.audit.verdict import Violation


def entry_faults(module: Module, signature: Signature) -> Iterator[Violation]:
    """Entry parameters whose number, size or layout over the nodes is not that of their role."""
    if module.devices != signature.nodes:
        yield Violation(
            "wrong-signature", f"expected {signature.nodes} nodes, got {module.devices} partitions"
        )
    yield from _role_faults(signature)
    parameters = module.entry.parameters
    if len(parameters) != len(signature.parameters):
        yield Violation(
            "wrong-signature",
            f"expected {len(signature.parameters)} parameters, got {len(parameters)}"
            " (JAX leaves out unused ones, unless it is told keep_unused=True)",
        )
        return
    for p, role in zip(parameters, signature.parameters, strict=True):
        if p.shape.dims != role.shape:
            state = isinstance(role, State)
            yield Violation(
                "complete-entry" if state else "wrong-block",
                f"{role.name}: expected shape {role.shape} on each node, got {p.shape}",
                line=module.line(p),
            )
        fits_role = module.devices == signature.nodes and len(p.shape.dims) == len(role.axes)
        fault = _sharding_fault(p, role, signature.nodes) if fits_role else None
        if fault:
            yield Violation(fault[0], f"{role.name}: {fault[1]}", line=module.line(p))


def _role_faults(signature: Signature) -> Iterator[Violation]:
    """Inputs that are complete, or not to be told apart, by what the caller says of them."""
    names = [role.name for role in signature.parameters]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield Violation("wrong-signature", f"expected inputs of different names, got two {name}")
    for role in signature.parameters:
        if isinstance(role, Complete):
            yield Violation("complete-entry", f"{role.name}: expected a shard, got complete state")
        elif isinstance(role, State) and not role.split and signature.nodes > 1:
            text = f"{role.name}: expected an axis that is split, got state that each node holds"
            yield Violation("complete-entry", text)


def sharding_faults(shardings, signature: Signature) -> Iterator[Violation]:
    """The same for the layouts that JAX will hold the arguments to (`Compiled.input_shardings`).

    Newer compilers note none in the program, so this is where they are to be found.
    """
    if len(shardings) != len(signature.parameters):
        return  # JAX left out arguments that are not used; the program's own notes must do
    for sharding, role in zip(shardings, signature.parameters, strict=True):
        if not role.split:
            continue
        nodes = signature.nodes
        whole = tuple(a.size * nodes if a.split else a.size for a in role.axes)
        along = role.axes.index(role.split)
        devices = getattr(sharding, "_device_assignment", None) or sorted(
            sharding.device_set, key=lambda d: d.id
        )
        try:
            index = sharding.devices_indices_map(whole)
        except (IndexError, ValueError):
            text = f"{role.name}: expected a layout of {whole} over the nodes, got {sharding}"
            yield Violation("wrong-block", text)
            continue
        starts = [index[d][along].start for d in devices]
        held = {
            tuple(len(range(*s.indices(n))) for s, n in zip(i, whole, strict=True))
            for i in index.values()
        }
        if held != {role.shape}:
            code = "complete-entry" if isinstance(role, State) else "wrong-block"
            yield Violation(code, f"{role.name}: expected {role.shape} on each node, got {held}")
        elif starts != [q * role.split.size for q in range(nodes)]:
            yield Violation(
                "wrong-owner", f"{role.name}: expected runs in the order of the nodes, got {starts}"
            )


def fits(module: Module, signature: Signature) -> bool:
    """Can the program be followed: are number and shapes of its inputs those of their roles?"""
    if any(isinstance(role, Complete) for role in signature.parameters):
        return False
    shapes = [p.shape.dims for p in module.entry.parameters]
    return module.devices == signature.nodes and shapes == [r.shape for r in signature.parameters]


def _sharding_fault(p: Instruction, role: Role, nodes: int) -> tuple[str, str] | None:
    """Does the sharding that the compiler noted agree? It notes none in newer versions."""
    if p["sharding"] is None or not role.axes:
        return None
    held = blocks(p["sharding"], len(role.axes), nodes, p.name)
    tiles = tuple(len({b[d] for b in held}) for d in range(len(role.axes)))
    expected = tuple(nodes if axis.split else 1 for axis in role.axes)
    if tiles != expected:
        code = "complete-entry" if isinstance(role, State) else "wrong-block"
        return code, f"expected it cut into {expected} blocks, got {tiles}"
    order = [b[role.axes.index(role.split)] for b in held] if role.split else []
    if order != list(range(len(order))):
        return "wrong-owner", f"expected the nodes in order, got blocks {order}"
    return None
