"""Mutants of function: an honest program that moves the same values and computes other ones.

What crosses, in which shape and between which nodes stays as it is, so most of these are for the
identity test to find and not for the walk. Each yields (kind, place, text), as in `mutations`.
"""

import re
from collections.abc import Iterator

from experiments.adversary.entry_text import Line, after, full_slice, lines, shape

Mutant = tuple[str, str, str]
_FLOATS = ("f32", "bf16")
_COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter")
_BITS = {"f32": ("u32", 24), "bf16": ("u16", 12)}


def mutants(text: str, every: int = 1) -> Iterator[Mutant]:
    """All of them; of each kind every `every`-th place."""
    places: dict[str, int] = {}
    for kind, place, changed in (*values(text), *constants(text), *opcodes(text), *swaps(text)):
        places[kind] = places.get(kind, -1) + 1
        if places[kind] % every == 0:
            yield kind, place, changed


def values(text: str) -> Iterator[Mutant]:
    """Inputs, what is sent and what is received, each changed before it is read."""
    every = lines(text)
    sent = {o for v in every for o in operands(v) if v.opcode in _COLLECTIVES}
    floats = {v.dtype for v in every if v.opcode == "parameter"}
    for v in every:
        if not v.array or not (v.name in sent or v.opcode in ("parameter", *_COLLECTIVES)):
            continue
        for kind, new in ways(v).items():
            if kind == "rounded to bf16" and "bf16" in floats:
                continue  # which the program may do anywhere
            changed = after(text, v, new, "m.r")
            head, tail = changed.split("%m.r = ")
            if "%m.r" in tail:  # something reads it
                yield kind, v.name, changed


def operands(v: Line) -> list[str]:
    inside = v.text.partition(f" {v.opcode}(")[2].partition(")")[0]
    return re.findall(r"%([\w.-]+)", inside)


def ways(v: Line) -> dict[str, str]:
    """Instructions that end in %m.r, a value of the same shape, by kind of change."""
    own, at, rank = v.shape, f"%{v.name}", len(v.dims)
    if v.dtype in ("s32", "u32"):
        return {"plus one": _constant(v, 1) + f"  %m.r = {own} add({at}, %m.k)\n"}
    if v.dtype == "pred":
        return {"the opposite": f"  %m.r = {own} not({at})\n"}
    if v.dtype not in _FLOATS or not rank:
        return {}
    typed = lambda dtype: own.replace(v.dtype, dtype, 1)  # noqa: E731
    bits, high = _BITS[v.dtype]
    times = lambda x: _constant(v, x) + f"  %m.r = {own} multiply({at}, %m.k)\n"  # noqa: E731
    ways = {
        "scaled by 1 + 1e-4": times(1.0001) if v.dtype == "f32" else times(1.0078125),
        "negated": f"  %m.r = {own} negate({at})\n",
        "squared": f"  %m.r = {own} multiply({at}, {at})\n",
        "clamped": (
            _constant(v, 0.5)
            + f"  %m.n = {own} negate(%m.k)\n  %m.r = {own} clamp(%m.n, {at}, %m.k)\n"
        ),
        "shifted by 1e-6": _constant(v, 1e-6) + f"  %m.r = {own} add({at}, %m.k)\n",
        "only node 0": (
            "  %m.id = u32[] partition-id()\n  %m.0 = u32[] constant(0)\n"
            "  %m.p = pred[] compare(%m.id, %m.0), direction=EQ\n"
            f"  %m.m = {typed('pred')} broadcast(%m.p), dimensions={{}}\n" + _masked(v)
        ),
    }
    if v.dtype == "f32":
        ways["rounded to bf16"] = (
            f"  %m.h = {typed('bf16')} convert({at})\n  %m.r = {own} convert(%m.h)\n"
        )
    for along, name in {0: "row", rank - 1: "coordinate"}.items():
        n = v.dims[along]
        if n < 2:
            continue
        flipped = f"  %m.f = {own} reverse({at}), dimensions={{{along}}}\n"
        first = [1 if d == along else m for d, m in enumerate(v.dims)]
        rest = full_slice(v.dims).split(", ")
        rest[along] = ("{" if along == 0 else "") + f"[1:{n}]" + ("}" if along == rank - 1 else "")
        less = shape(v.dtype, [n - 1 if d == along else m for d, m in enumerate(v.dims)])
        ways |= {
            f"{name}s reversed": flipped.replace("%m.f", "%m.r"),
            f"{name}s rolled": (
                f"  %m.a = {shape(v.dtype, first)} slice({at}), slice={full_slice(first)}\n"
                f"  %m.b = {less} slice({at}), slice={', '.join(rest)}\n"
                f"  %m.r = {own} concatenate(%m.b, %m.a), dimensions={{{along}}}\n"
            ),
            f"1e-7 of another {name} added": (
                flipped + _constant(v, 1e-7)
                + f"  %m.x = {own} multiply(%m.f, %m.k)\n  %m.r = {own} add({at}, %m.x)\n"
            ),
            f"low bits of another {name}": (
                flipped
                + f"  %m.i = {typed(bits)} bitcast-convert({at})\n"
                f"  %m.j = {typed(bits)} bitcast-convert(%m.f)\n"
                f"  %m.c = {bits}[] constant({high})\n"
                f"  %m.k = {typed(bits)} broadcast(%m.c), dimensions={{}}\n"
                f"  %m.l = {typed(bits)} shift-right-logical(%m.j, %m.k)\n"
                f"  %m.o = {typed(bits)} xor(%m.i, %m.l)\n"
                f"  %m.r = {own} bitcast-convert(%m.o)\n"
            ),
            f"one {name} alone": _where(v, along, "EQ"),
            f"all but one {name}": _where(v, along, "NE"),
        }
    return ways


def _constant(v: Line, x) -> str:
    """%m.k: the number, in the shape of a value."""
    return (
        f"  %m.c = {v.dtype}[] constant({x})\n  %m.k = {v.shape} broadcast(%m.c), dimensions={{}}\n"
    )


def _masked(v: Line) -> str:
    """%m.r: the value where %m.m is true, and zero."""
    return (
        f"  %m.c = {v.dtype}[] constant(0)\n  %m.k = {v.shape} broadcast(%m.c), dimensions={{}}\n"
        f"  %m.r = {v.shape} select(%m.m, %{v.name}, %m.k)\n"
    )


def _where(v: Line, along: int, direction: str) -> str:
    typed = lambda dtype: v.shape.replace(v.dtype, dtype, 1)  # noqa: E731
    return (
        f"  %m.i = {typed('s32')} iota(), iota_dimension={along}\n  %m.1 = s32[] constant(1)\n"
        f"  %m.o = {typed('s32')} broadcast(%m.1), dimensions={{}}\n"
        f"  %m.m = {typed('pred')} compare(%m.i, %m.o), direction={direction}\n" + _masked(v)
    )


def constants(text: str) -> Iterator[Mutant]:
    """Every number that is built in: epsilons, scales, the base of the rotation, one over D.

    A number is changed wherever it stands: the scale of the scores that only their largest is taken
    of may be any.
    """
    pattern = r"(%\S+ = (?:f32|bf16)\[\](?:\{\})? constant\()([^)]+)\)"
    for number in sorted({m[2] for m in re.finditer(pattern, text)}):
        if number in ("0", "inf", "-inf", "nan", "-nan"):
            continue
        other = float(number) * (1.0001 if "= f32[]" in text else 1.02)
        changed = re.sub(rf"( constant\(){re.escape(number)}\)", rf"\g<1>{other})", text)
        yield "constant by 1 + 1e-4", number, changed


_OTHERS = {
    "rsqrt": "sqrt", "exponential": "tanh", "cosine": "sine", "sine": "cosine",
    "logistic": "tanh", "add": "subtract",
}


def opcodes(text: str) -> Iterator[Mutant]:
    """One operator in the place of another, wherever it stands: also a residual subtracted."""
    for m in re.finditer(r"%(\S+) = (?:f32|bf16)\S* ([\w-]+)\(", text):
        if new := _OTHERS.get(m[2]):
            yield f"{m[2]} -> {new}", m[1], text[: m.start(2)] + new + text[m.end(2) :]


def swaps(text: str) -> Iterator[Mutant]:
    """Two inputs of one shape change places: another layer's weight, keys for values."""
    found: dict[str, Line] = {}
    for v in lines(text):
        if v.opcode != "parameter" or not v.dims or v.dtype not in _FLOATS:
            continue
        if other := found.get(v.shape):
            yield "inputs swapped", f"{other.name}, {v.name}", _swapped(text, other, v)
        found[v.shape] = v


def _swapped(text: str, a: Line, b: Line) -> str:
    number = r"parameter\((\d+)\)"
    first, second = (re.search(number, v.text)[0] for v in (a, b))
    for v, new in ((a, second), (b, first)):
        changed = re.sub(number, new, v.text)
        assert text.count(f"\n{v.text}\n") == 1, v.text
        text = text.replace(f"\n{v.text}\n", f"\n{changed}\n")
    return text
