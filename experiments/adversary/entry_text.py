"""Edits of an HLO module's text: mutants and forged programs are made line by line.

Only the entry computation is edited. Names stay what they are in the text, so an edit can say
which instruction it means; XLA's parser sees to it that what comes out is still HLO.
"""

import dataclasses
import math
import re

_LINE = re.compile(r"  (?:ROOT )?%(\S+) = (\((?:[^()]|\([^()]*\))*\)|\S+) ([\w-]+)\((.*)$")


@dataclasses.dataclass(frozen=True)
class Line:
    """One instruction: `  %name = shape opcode(operands), attributes`."""

    text: str
    name: str
    shape: str
    opcode: str

    @property
    def dims(self) -> list[int]:
        return [int(n) for n in re.match(r"\w+\[([\d,]*)\]", self.shape)[1].split(",") if n]

    @property
    def dtype(self) -> str:
        return self.shape.partition("[")[0]

    @property
    def operand(self) -> str:
        """Name of the only operand."""
        return re.search(rf" {re.escape(self.opcode)}\(%([^\s,()]+)\)", self.text)[1]

    @property
    def array(self) -> bool:
        return not self.shape.startswith("(") and self.dtype not in ("token", "opaque")

    def attribute(self, pattern: str) -> str:
        return re.search(pattern, self.text)[1]


def lines(text: str) -> list[Line]:
    """The instructions of the entry computation, in order."""
    body = text.split("\nENTRY ")[1].split("\n}")[0].splitlines()[1:]
    found = [(line, _LINE.match(line)) for line in body]
    return [Line(line, m[1], m[2], m[3]) for line, m in found if m]


def shape(dtype: str, dims) -> str:
    """An array shape in row-major layout."""
    order = ",".join(str(d) for d in reversed(range(len(dims))))
    return f"{dtype}[{','.join(map(str, dims))}]{{{order}}}"


def replace(text: str, line: Line, new: str) -> str:
    """Other instructions in the place of one; the last of them keeps its name."""
    assert text.count(f"\n{line.text}\n") == 1, line.text
    return text.replace(f"\n{line.text}\n", f"\n{new.rstrip()}\n")


def after(text: str, line: Line, new: str, result: str | None) -> str:
    """More instructions after one; what read it from there on reads `result` instead."""
    head, tail = text.split(f"\n{line.text}\n")
    if result is not None:
        tail = re.sub(rf"%{re.escape(line.name)}(?![\w.-])", f"%{result}", tail)
    return f"{head}\n{line.text}\n{new.rstrip()}\n{tail}"


def with_computation(text: str, computation: str) -> str:
    """One more computation before the entry."""
    return text.replace("\nENTRY ", f"\n{computation.strip()}\n\nENTRY ", 1)


def full_slice(dims) -> str:
    return "{" + ", ".join(f"[0:{n}]" for n in dims) + "}"


def size(dims) -> int:
    return math.prod(dims)
