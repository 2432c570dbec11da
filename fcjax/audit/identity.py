"""Is every value that a program sends, returns or keeps what the plan says that it is?

The program is cut at its collectives: what a node is handed by one is replaced by fresh random
numbers. Everything that it then puts into the next collective, returns, or keeps in a cache is a
function of its own inputs and of what it was handed, and is run (`hlo.evaluate`, in float64) on
random inputs and compared with the definition. What differs on almost all inputs differs on these,
so a program passes only if the functions are equal; docs/AUDIT.md has the probability.

The holding check is part of it. A node holds its inputs, what it is handed, its results and its
caches; each of the last two is compared with a definition that reads the node's own blocks, public
values and what it was handed, so nothing else can be kept there. What a program could rebuild from
numbers that are built into it, for example with the pseudo-inverse of another node's block as a
constant, would have to be kept too; such constants are refused all the same (`large-constant`).

This module knows no model: a definition says what to draw and what to expect.
"""

import dataclasses
import math
import secrets
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from fcjax.audit.domain.roles import Signature, Weight
from fcjax.audit.draws import Draws, Pool
from fcjax.audit.hlo.elementwise import FLOATS, Types, is_float
from fcjax.audit.hlo.evaluate import Evaluator, Stop
from fcjax.audit.hlo.graph import Instruction, Module
from fcjax.audit.hlo.movement import literal
from fcjax.audit.verdict import Violation

Nodes = list[np.ndarray]  # one array for each node

# Of the largest number along the last axis. In f32 a number that stands beside another and is not
# lost in it is at least 6e-8 of it.
TOLERANCE = 1e-12
_NEAR = 2.0**-21  # how far a program may round the constants of the definition, relatively
_MOST = 20  # violations in a report
_SAMPLES = ((False, 0), (True, None), (True, 1))  # see `Draws`


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A collective as the plan defines it.

    Attributes:
      operator: what it serves, as reports call it.
      kind: its HLO opcode.
      operands: what each node puts in.
      receive: from what the nodes of the program put in, what each node is handed in the test.
    """

    operator: str
    kind: str
    operands: Nodes
    receive: Callable[[Nodes], Nodes]


@dataclasses.dataclass(frozen=True)
class Result:
    """One result of a program.

    Attributes:
      values: what it is on each node.
      exact: where it must be equal to the last bit, on each node; None where rounding is allowed.
    """

    values: Nodes
    exact: Nodes | None = None


class Definition(Protocol):
    """What a program is to compute, for example `fcjax.sharded.definition.Definition`.

    Attributes:
      nodes: N.
    """

    nodes: int

    def draw(self, roles, draws: Draws) -> dict[str, Nodes]:
        """Random inputs by the names of the parameters' roles."""

    def run(self, values: dict[str, Nodes], draws: Draws, near: Callable) -> Iterator[Transfer]:
        """A generator of the transfers; what the nodes are handed is sent in. Returns Results."""


def check(
    module: Module, signature: Signature, definition: Definition, seed: int | None = None
) -> tuple[Violation, ...]:
    """Compare a program with its definition on random inputs.

    The first sample has one scale and goes the program's usual way; in the others scales vary.

    Args:
      module: the program.
      signature: roles of its parameters and results; its shapes are taken to fit (`entry`).
      definition: what it is to compute.
      seed: repeats a check; None draws one that no program can know.

    Raises:
      Unauditable: the program holds something that cannot be evaluated.
    """
    if faults := tuple(_constants(module, signature)):
        return faults
    seed = secrets.randbits(64) if seed is None else seed
    rng = np.random.default_rng(seed)
    floats = {p.shape.dtype for p in module.entry.parameters if is_float(p.shape.dtype)}
    evaluator = Evaluator(module, Types(real=frozenset({"f32", *floats})))
    pool = Pool(rng, max(math.prod(role.shape) for role in signature.parameters))
    report = _Report(module, seed)
    for varied, end in _SAMPLES:
        draws = Draws(rng, pool, varied, end)
        _compare(evaluator, signature, definition, draws, report)
    return tuple(report.violations.values())[:_MOST]


def _compare(evaluator: Evaluator, signature, definition: Definition, draws, report) -> None:
    """One sample: all nodes and the definition, from one collective to the next."""
    roles = signature.parameters
    values = definition.draw(roles, draws)
    expected = definition.run(values, draws, _Constants(evaluator.module).near)
    programs = [
        evaluator.run(n, [values[role.name][n] for role in roles]) for n in range(definition.nodes)
    ]
    handed: list = [None] * len(programs)
    answer = None
    while True:
        stops = [_advance(program, h) for program, h in zip(programs, handed, strict=True)]
        if not any(isinstance(s, Stop) for s in stops):
            break
        if len({s.instruction if isinstance(s, Stop) else None for s in stops}) > 1:
            report.add("order", "expected one collective on all nodes, got several")
            return
        handed = [[None] * len(s.operands) for s in stops]
        while any(x is None for x in handed[0]):
            transfer = _advance(expected, answer)
            answer = report.transfer(transfer, stops, handed)
            if answer is None:
                return
    results = _advance(expected, answer)
    if isinstance(results, Transfer):
        report.add("order", f"expected the {results.kind} of {results.operator}, got the end")
    else:
        report.results(signature, results, stops)


def _advance(generator, value):
    try:
        return generator.send(value)
    except StopIteration as done:
        return done.value


class _Report:
    """Violations, one for each value that is another than its definition."""

    def __init__(self, module: Module, seed: int):
        self.violations: dict[tuple, Violation] = {}
        self._module, self._seed = module, seed

    def add(self, what: str, text: str, i: Instruction | None = None) -> None:
        if (what, i) not in self.violations and len(self.violations) < _MOST:
            line = self._module.line(i) if i else ""
            text = f"{what}: {text} (seed {self._seed})"
            violation = Violation("not-identical", text, line, i.scope if i else "")
            self.violations[what, i] = violation

    def transfer(self, transfer, stops: list[Stop], handed: list[list]) -> Nodes | None:
        """Compare one operand of a collective, and fill in what each node is handed for it.

        Args:
          transfer: what the plan has next.
          stops: the collective, on each node.
          handed: for each node and operand; None where it is still to come.

        Returns:
          What the nodes are handed, in the plan's shape; None if it is another collective.
        """
        i, kind = stops[0].instruction, stops[0].kind
        if not isinstance(transfer, Transfer):
            self.add("order", f"expected the end, got a {kind}", i)
            return None
        want = transfer.operands
        left = [n for n, x in enumerate(handed[0]) if x is None]
        fits = [n for n in left if stops[0].operands[n].size == want[0].size]
        if kind != transfer.kind or not fits:
            shapes = ", ".join(str(i.operands[n].shape) for n in left)
            text = (
                f"expected the {transfer.kind} of {list(want[0].shape)}, got a {kind} of {shapes}"
            )
            self.add(transfer.operator, text, i)
            return None
        # The compiler may have combined transfers, and in any order.
        all_got = [[s.operands[n].reshape(want[0].shape) for s in stops] for n in fits]
        all_faults = [list(map(_difference, got, want)) for got in all_got]
        best = min(range(len(fits)), key=lambda n: sum(map(bool, all_faults[n])))
        for node, fault in enumerate(all_faults[best]):
            if fault:
                self.add(transfer.operator, f"node {node} puts in {fault}", i)
        answer, target = transfer.receive(all_got[best]), stops[0].targets[fits[best]]
        source = i.operands[fits[best]].shape
        if _axis(want[0].shape, answer[0].shape) != _axis(source.dims, target.dims):
            text = f"expected to hand out {list(answer[0].shape)}, got {target} of {source}"
            self.add(transfer.operator, text, i)
            return None
        for each, x in zip(handed, answer, strict=True):
            each[fits[best]] = x.reshape(target.dims)
        return answer

    def results(self, signature: Signature, results: list[Result], got: list[tuple]) -> None:
        """What the nodes return and keep."""
        root = self._module.entry.root
        if len({len(results), len(signature.results), *map(len, got)}) > 1:
            self.add("results", f"expected {len(signature.results)}, got {len(got[0])}", root)
            return
        for n, (role, result) in enumerate(zip(signature.results, results, strict=True)):
            writer = root.operands[n] if root.opcode == "tuple" else root
            for node, want in enumerate(result.values):
                exact = None if result.exact is None else result.exact[node]
                if got[node][n].size != want.size:
                    fault = f"{list(got[node][n].shape)}, expected {list(want.shape)}"
                else:
                    fault = _difference(got[node][n].reshape(want.shape), want, exact)
                if fault:
                    self.add(f"result {role.name}", f"node {node} returns {fault}", writer)


def _axis(operand, result) -> tuple[int, ...]:
    """What is left of two shapes: sizes before, along and after the axis that was dealt out."""
    changed = [d for d, (n, m) in enumerate(zip(operand, result, strict=False)) if n != m]
    if len(operand) != len(result) or not changed:  # all receive the same
        return (math.prod(operand), math.prod(result))
    (d,) = changed[:1]
    return (math.prod(operand[:d]), operand[d], result[d], math.prod(result[d + 1 :]))


def _difference(got: np.ndarray, want: np.ndarray, exact=None) -> str:
    """Where one value is not the other, in words; "" if it is nowhere."""
    if (got.dtype.kind, want.dtype.kind) != ("f", "f"):
        wrong = got != want if got.dtype == want.dtype else np.ones(want.shape, bool)
    else:
        with np.errstate(invalid="ignore"):
            size = np.abs(np.where(np.isfinite(want), want, 0))
            scale = size.max(-1, keepdims=True) if want.ndim else size
            wrong = ~((np.abs(got - want) <= TOLERANCE * scale) | (got == want))
        if exact is not None:
            wrong |= exact & (got != want)
    if not wrong.any():
        return ""
    first = tuple(int(n) for n in np.argwhere(wrong)[0])
    others = f", and {wrong.sum() - 1} more of {want.size}" if wrong.sum() > 1 else ""
    row = f"row {first[0]}, " if want.ndim > 1 else ""
    place = f"{row}coordinate {list(first)}"
    return f"{got[first]!s} of {got.dtype} at {place}{others}: expected {want[first]!s}"


def _constants(module: Module, signature: Signature) -> Iterator[Violation]:
    """Constants that are as large as a block of a weight, or whose numbers are not in the text."""
    blocks = [r.shape for r in signature.parameters if isinstance(r, Weight) and len(r.shape) > 1]
    least, total = min(map(math.prod, blocks), default=math.inf), 0
    for i in _all_constants(module):
        size = math.prod(i.shape.dims)
        total += size if size > 1 else 0
        if i.name in module.elided:
            why = "its numbers are not in the text"
        elif size > 1 and total >= least:
            why = f"{total} numbers with those before it, as many as the least block of a weight"
        else:
            continue
        text = f"expected no large constant, got {i.shape}: {why}"
        yield Violation("large-constant", text, module.line(i), i.scope)


def _all_constants(module: Module) -> Iterator[Instruction]:
    for computation in module.computations:
        yield from (i for i in computation.instructions if i.opcode == "constant")


class _Constants:
    """The float constants of a program: its own roundings of those of the definition."""

    def __init__(self, module: Module):
        floats = [literal(i) for i in _all_constants(module) if i.shape.dtype in FLOATS]
        sizes = [np.abs(x.astype(np.float64)).ravel() for x in floats]
        self._sorted = np.unique(np.concatenate([[0.0, np.inf], *sizes]))

    def near(self, x, otherwise=None):
        """The constant nearest to a number, or to each of an array; if none is near, the number
        itself, or `otherwise` where that is given."""
        size = np.abs(x)
        after = np.searchsorted(self._sorted, size).clip(1)
        pair = np.stack([self._sorted[after - 1], self._sorted[after]])
        away = np.abs(pair - size)
        nearest, none = np.where(away[0] < away[1], *pair), x if otherwise is None else otherwise
        return np.where(away.min(0) <= _NEAR * size, np.sign(x) * nearest, none)[()]
