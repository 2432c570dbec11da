"""Mutants of the exchanges that choose the next token; see `mutations`."""

import re
from collections.abc import Iterator

from experiments.adversary.entry_text import Line, full_slice, shape, size
from experiments.adversary.mutations import combiner

_OPCODES = ("add", "maximum", "minimum", "multiply")


def combine(text: str, v: Line) -> str:
    """The opcode by which a collective combines what the nodes send."""
    name = re.escape(v.attribute(r"to_apply=%([\w.-]+)"))
    return re.search(rf"^%{name} .*?ROOT \S+ = \S+ ([\w-]+)\(", text, re.M | re.S)[1]


def others(text: str, v: Line, before: list[Line]) -> list[str]:
    """Operands of earlier exchanges of its shape that are combined in another way."""
    fits = lambda w: w.shape == v.shape and combine(text, w) != combine(text, v)  # noqa: E731
    return [w.operand for w in before if fits(w)]


def mutants(
    text: str, v: Line, x: Line, others: list[str], logits: Line, residual: Line
) -> Iterator[tuple[str, str, str]]:
    """(kind, instructions, computation) in place of one exchange.

    Args:
      v: the exchange.
      x: its operand.
      others: operands of earlier ones of its shape, combined in another way.
      logits: the scatter that left them.
      residual: the residual at the entry.
    """
    rest = v.text.partition(f"all-reduce(%{x.name})")[2]
    reduce = lambda name: f"  %{v.name} = {v.shape} all-reduce(%{name}){rest}\n"  # noqa: E731
    own = v.attribute(r"to_apply=(%[\w.-]+)")
    batch = v.dims[0]

    def as_operand(name: str) -> str:
        """%m.x: a value [B] in the operand's type and shape."""
        return (
            f"  %m.c = {shape(v.dtype, [batch])} convert(%{name})\n"
            f"  %m.x = {v.shape} broadcast(%m.c), dimensions={{0}}\n"
        )

    def reduced(name: str, dims: list[int]) -> str:
        """%m.v [B]: a value [B, M] combined over M."""
        return (
            f"  %m.t = {shape(v.dtype, dims)} convert(%{name})\n"
            f"  %m.z = {v.dtype}[] constant(0)\n"
            f"  %m.v = {shape(v.dtype, [batch])} reduce(%m.t, %m.z), dimensions={{1}},"
            f" to_apply={own}\n"
        )

    yield "dropped", f"  %{v.name} = {v.shape} copy(%{x.name})\n", ""
    yield "twice", reduce(x.name).replace(f"%{v.name} ", "%m.first ") + reduce(x.name), ""
    yield "of itself", reduce(x.name).replace(f"%{v.name} ", "%m.first ") + reduce("m.first"), ""
    for o in others:
        yield "fed with another's", reduce(o), ""
    yield "a function of it", f"  %m.x = {v.shape} negate(%{x.name})\n" + reduce("m.x"), ""
    one = [batch, 1]
    yield "of one logit", (
        f"  %m.s = {shape(logits.dtype, one)} slice(%{logits.name}), slice={full_slice(one)}\n"
        f"  %m.v = {shape(logits.dtype, [batch])} reshape(%m.s)\n"
        + as_operand("m.v") + reduce("m.x")
    ), ""
    half = [batch, logits.dims[1] // 2]
    yield "of half of the logits", (
        f"  %m.s = {shape(logits.dtype, half)} slice(%{logits.name}), slice={full_slice(half)}\n"
        + reduced("m.s", half) + as_operand("m.v") + reduce("m.x")
    ), ""
    typed = shape(v.dtype, logits.dims)
    yield "of each logit", (
        f"  %m.l = {typed} convert(%{logits.name})\n  %m.r = {typed} all-reduce(%m.l){rest}\n"
        + reduced("m.r", logits.dims) + as_operand("m.v")
        + f"  %{v.name} = {v.shape} copy(%m.x)\n"
    ), ""
    rows = [batch, size(residual.dims) // batch]
    flat = f"  %m.f = {shape(residual.dtype, rows)} reshape(%{residual.name})\n"
    yield "of the residual", (
        flat + reduced("m.f", rows) + as_operand("m.v") + reduce("m.x")
    ), ""
    yield "of logits and residual", (
        flat + reduced("m.f", rows) + as_operand("m.v")
        + f"  %m.y = {v.shape} add(%{x.name}, %m.x)\n" + reduce("m.y")
    ), ""
    wide = [2 * batch, *v.dims[1:]]
    yield "twice as wide", (
        f"  %m.x = {shape(v.dtype, wide)} concatenate(%{x.name}, %{x.name}), dimensions={{0}}\n"
        f"  %m.r = {shape(v.dtype, wide)} all-reduce(%m.x){rest}\n"
        f"  %{v.name} = {v.shape} slice(%m.r), slice={full_slice(v.dims)}\n"
    ), ""
    if v.dtype == logits.dtype:
        pair = f"({v.shape}, {logits.shape})"
        yield "logits combined with it", (
            f"  %m.t = {pair} all-reduce(%{x.name}, %{logits.name}){rest}\n"
            f"  %{v.name} = {v.shape} get-tuple-element(%m.t), index=0\n"
        ), ""
    for opcode in _OPCODES:
        if opcode != combine(text, v):
            new = reduce(x.name).replace(f"to_apply={own}", "to_apply=%m.other")
            yield f"{opcode} in its place", new, combiner("m.other", opcode, v.dtype)
