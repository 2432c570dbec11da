"""Are a program's inputs the shards and blocks that the caller says they are?"""

from collections.abc import Iterator

from fcjax.audit.domain.roles import Complete, Role, Signature, State
from fcjax.audit.hlo.graph import Instruction, Module
from fcjax.audit.hlo.sharding import blocks
from fcjax.audit.verdict import Violation


def entry_faults(module: Module, signature: Signature) -> Iterator[Violation]:
    """Entry parameters whose number, size or layout over the nodes is not that of their role."""
    if module.devices != signature.devices:
        text = f"expected {signature.devices} nodes, got {module.devices} partitions"
        yield Violation("wrong-signature", text)
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
        fits_role = module.devices == signature.devices and len(p.shape.dims) == len(role.axes)
        fault = _sharding_fault(p, role, signature) if fits_role else None
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
        along, nodes = role.axes.index(role.split), signature.nodes
        devices = getattr(sharding, "_device_assignment", None) or sorted(
            sharding.device_set, key=lambda d: d.id
        )
        whole = list(role.shape)
        try:
            if signature.groups:  # rows may be dealt out over the groups
                most = tuple(n * len(devices) for n in role.shape)
                shard = sharding.shard_shape(most)
                whole = [n * (m // s) for n, m, s in zip(role.shape, most, shard, strict=True)]
            whole[along] = role.split.size * nodes
            index = sharding.devices_indices_map(tuple(whole))
        except (IndexError, ValueError):
            text = f"{role.name}: expected a layout of {whole} over the nodes, got {sharding}"
            yield Violation("wrong-block", text)
            continue
        held = {
            tuple(len(range(*s.indices(n))) for s, n in zip(i, whole, strict=True))
            for i in index.values()
        }
        if held != {role.shape}:
            code = "complete-entry" if isinstance(role, State) else "wrong-block"
            yield Violation(code, f"{role.name}: expected {role.shape} on each node, got {held}")
            continue
        for group in signature.all_groups:
            own = [index[devices[q]] for q in group]
            starts = [i[along].start for i in own]
            others = {(*map(str, i[:along]), *map(str, i[along + 1 :])) for i in own}
            if starts != [q * role.split.size for q in range(nodes)] or len(others) > 1:
                text = f"expected runs in the order of the nodes, got {starts}"
                yield Violation("wrong-owner", f"{role.name}: {text}")
                break


def fits(module: Module, signature: Signature) -> bool:
    """Can the program be followed: are number and shapes of its inputs those of their roles?"""
    if any(isinstance(role, Complete) for role in signature.parameters):
        return False
    shapes = [p.shape.dims for p in module.entry.parameters]
    same = shapes == [r.shape for r in signature.parameters]
    return module.devices == signature.devices and same


def _sharding_fault(p: Instruction, role: Role, signature: Signature) -> tuple[str, str] | None:
    """Does the sharding that the compiler noted agree? It notes none in newer versions."""
    if p["sharding"] is None or not role.axes:
        return None
    held = blocks(p["sharding"], len(role.axes), signature.devices, p.name)
    expected = tuple(signature.nodes if axis.split else 1 for axis in role.axes)
    for group in signature.all_groups:  # groups may hold other rows
        own = [held[device] for device in group]
        tiles = tuple(len(set(numbers)) for numbers in zip(*own, strict=True))
        if tiles != expected:
            code = "complete-entry" if isinstance(role, State) else "wrong-block"
            return code, f"expected it cut into {expected} blocks, got {tiles}"
        order = [b[role.axes.index(role.split)] for b in own] if role.split else []
        if order != list(range(len(order))):
            return "wrong-owner", f"expected the nodes in order, got blocks {order}"
    return None
