"""Which instructions may move data between nodes or to the host, wherever they hide.

The walk of `provenance` follows values; this module looks at every instruction of every computation
that the entry can reach, so that nothing is missed because its value was not followed.
"""

from collections.abc import Iterator

from fcjax.audit.hlo.called import GEMMS
from fcjax.audit.hlo.graph import Computation, Instruction, Module, Shape, Unauditable
from fcjax.audit.hlo.registry import registered
from fcjax.audit.rules import local
from fcjax.audit.verdict import Violation

# Collectives that `provenance` judges one by one, where it can see their operands.
JUDGED = {
    "all-gather", "all-gather-start", "all-reduce", "all-reduce-start", "reduce-scatter",
}
# Collectives that no contract contains.
COLLECTIVES = JUDGED | {
    "all-to-all", "collective-broadcast", "collective-permute", "collective-permute-start",
    "ragged-all-to-all",
}
# Transfers to or from the host or another device.
TRANSFERS = {"infeed", "outfeed", "recv", "recv-done", "send", "send-done"}
# Custom calls that XLA's backends expand themselves, before they look for one that is registered
# under the name: the node's own matrix products and its own largest numbers. A name says nothing
# about what a library does, so one that anybody has registered is refused with all the others.
BUILT_IN = GEMMS | {"TopK"}
# Fusions that are compiled from their body, as the plain kinds are, by another code generator.
_KINDS = {"kLoop", "kInput", "kOutput"}
_GENERATORS = {"__triton", "__triton_gemm", "__triton_nested_gemm_fusion", "__ynn_fusion"}
# Frontend attributes that only say how to compile, not where to run. Unknown ones may say that.
_NOTES = {"fingerprint_before_lhs", "xla_cpu_small_call"}
_SHARDING_NOTES = "xla.sdy."
_DEVICE_MEMORY = 0  # 5 is the host's (xla/layout.h); the rest differ from backend to backend
_DEVICE_THREADS = {"", "main", "explicit", "parallel"}
_CALLS = {"call", "async-start"}
# Operators that `provenance` handles itself, beside those that have a rule in `transfer`.
_STRUCTURE = _CALLS | {
    "add-dependency", "after-all", "all-gather-done", "all-reduce-done", "async-done",
    "async-update", "collective-permute-done", "conditional", "copy-done", "copy-start",
    "custom-call", "fusion", "get-tuple-element", "opt-barrier", "parameter", "tuple", "while",
}
_KNOWN = set(local.RULES) | _STRUCTURE | COLLECTIVES | TRANSFERS


def scan(module: Module, loops: frozenset[Instruction] = frozenset()) -> Iterator[Violation]:
    """Violations that are visible without following values.

    Args:
      loops: those of which every round was followed.
    """
    for shape in module.layout:
        if shape.memory != _DEVICE_MEMORY:
            yield Violation("host-transfer", f"{shape} enters or leaves in memory {shape.memory}")
    for note in _places(module.notes):
        yield Violation("host-transfer", f"{note} may change where the program runs")
    counted = reachable(module, loops)
    for computation, straight in reachable(module).items():
        if computation.thread not in _DEVICE_THREADS:
            yield Violation(
                "host-transfer",
                f"computation {computation.name} runs on execution thread {computation.thread!r}",
            )
        for i in computation.instructions:
            # A gather in a loop would be one instruction, but not one gather.
            gathers = i.opcode.startswith("all-gather")
            yield from _instruction(module, i, straight if gathers else counted[computation])


def trusted_calls(module: Module) -> list[str]:
    """Custom calls that passed by their names, as no one has registered them in this process."""
    calls = {i["custom_call_target"] for c in reachable(module) for i in c.instructions}
    return sorted(calls & BUILT_IN)


def _places(notes: dict[str, str]) -> list[str]:
    known = lambda key: key in _NOTES or key.startswith(_SHARDING_NOTES)  # noqa: E731
    return [f"{key}={value!r}" for key, value in notes.items() if not known(key)]


def reachable(
    module: Module, loops: frozenset[Instruction] = frozenset()
) -> dict[Computation, bool]:
    """Computations that the entry reaches, and whether each runs exactly once, in straight line.

    Also those that only these loops run count as straight.
    """
    found: dict[Computation, bool] = {}
    todo = [(module.entry, True)]
    while todo:
        computation, straight = todo.pop()
        if computation in found and (found[computation] <= straight):
            continue
        found[computation] = straight
        for i in computation.instructions:
            todo += [(c, straight and (i.opcode in _CALLS or i in loops)) for c in i.called]
    return found


def result(i: Instruction) -> Shape:
    """The shape that a collective ends up with: the second part of a start's pair."""
    if i.opcode in ("all-gather-start", "collective-permute-start"):
        return i.shape.elements[1]
    return i.shape


def _size_fault(i: Instruction) -> str:
    """Where its sizes are not those of its groups, the groups are not what they seem."""
    sizes = {len(group) for group in i.groups}
    expected = [_received(i, o.shape.dims, n) for o in i.operands for n in sizes]
    got = [shape.dims for shape in result(i).leaves()]
    if expected == got:
        return ""
    return f"in groups of {sorted(sizes)} it receives {expected}, got {got}"


def _received(i: Instruction, dims: tuple[int, ...], group: int) -> tuple[int, ...]:
    """The shape that each of so many devices receives, if each puts in `dims`."""
    along = i["dimensions"][0] if i["dimensions"] else None
    if i.opcode.startswith("all-gather"):
        return tuple(n * group if d == along else n for d, n in enumerate(dims))
    if i.opcode == "reduce-scatter":
        return tuple(n // group if d == along else n for d, n in enumerate(dims))
    return dims


def _instruction(module: Module, i: Instruction, straight: bool) -> Iterator[Violation]:
    def violation(code: str, text: str) -> Violation:
        return Violation(code, text, line=module.line(i), scope=i.scope)

    if any(leaf.memory != _DEVICE_MEMORY for leaf in i.shape.leaves()):
        yield violation("host-transfer", "its result lies outside the device's main memory")
    for note in _places(i.notes):
        yield violation("host-transfer", f"{note} may change where it runs")
    if i["is_composite"]:
        yield violation("custom-call", "a library's own may run in place of a composite call")
    if i.opcode in TRANSFERS:
        yield violation("host-transfer", f"{i.opcode} moves data off the node")
    elif i.opcode in COLLECTIVES - JUDGED:
        yield violation("unplanned-collective", f"no contract contains a {i.opcode}")
    elif i.opcode in COLLECTIVES and not straight:
        yield violation(
            "control-flow", f"a {i.opcode} in a loop, branch or fusion cannot be counted"
        )
    elif i.opcode in COLLECTIVES and _size_fault(i):
        yield violation("wrong-group", _size_fault(i))
    elif i.opcode == "custom-call" and i["custom_call_target"] not in BUILT_IN - registered():
        target = i["custom_call_target"]
        yield violation("custom-call", f"{target!r} is not known to run on the node alone")
    elif i.opcode == "fusion" and not _compiled_from_its_body(i):
        yield violation("custom-call", f"a fusion of kind {i['fusion_kind']!r} is not known")
    elif i.opcode not in _KNOWN:
        raise Unauditable(f"{i.name}: expected a known operator, got {i.opcode}")


def _compiled_from_its_body(fusion: Instruction) -> bool:
    if fusion["fusion_kind"] in _KINDS:
        return True
    config = fusion.config()
    of = config.get("fusion_backend_config") or config.get("fusion_config")
    kind = of.get("kind") if isinstance(of, dict) else None
    return fusion["fusion_kind"] == "kCustom" and kind in _GENERATORS
