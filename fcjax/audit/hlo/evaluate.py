"""Runs the optimized HLO of one node in numpy, and stops at every collective.

Floats are computed with in float64, whatever type the program has, so that a linear function is
exact to about 1e-13: what a program adds to a number that is small enough to look like rounding is
seen. Where bits matter (`bitcast-convert`, `reduce-precision`, conversions to integers or to a
float type that is not among `Types.real`, all integers) they are those of the program.

Every opcode, attribute and custom call that is not known is `Unauditable`.
"""

import dataclasses
import functools
from collections.abc import Generator, Sequence

import numpy as np

from fcjax.audit.hlo import movement, sums
from fcjax.audit.hlo.called import GEMMS
from fcjax.audit.hlo.elementwise import ELEMENTWISE, Types
from fcjax.audit.hlo.graph import Computation, Instruction, Module, Shape
from fcjax.audit.hlo.proto import Unauditable
from fcjax.audit.hlo.sums import Product

COLLECTIVES = {
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-broadcast",
    "collective-permute", "ragged-all-to-all",
}
_LOCAL = ELEMENTWISE | movement.MOVEMENT | sums.SUMS
# Of a value that waits for its sum these are views of its two factors; see `sums.Product`.
_VIEWS = {"bitcast", "convert", "copy", "reshape", "transpose"}
_LONGEST = 100_000  # iterations of a loop


@dataclasses.dataclass(frozen=True)
class Stop:
    """A collective that a node has reached; a combined one has several operands.

    Attributes:
      instruction: the collective.
      operands: what the node puts in.
      targets: shapes of what it is to receive for each.
    """

    instruction: Instruction
    operands: tuple[np.ndarray, ...]
    targets: tuple[Shape, ...]

    @property
    def kind(self) -> str:
        return self.instruction.opcode.removesuffix("-start")


class Evaluator:
    """One program, to be run on any node with any parameters.

    Attributes:
      module: the program.
      types: which float types are computed with as real numbers.
    """

    def __init__(self, module: Module, types: Types = Types()):  # noqa: B008
        self.module, self.types = module, types
        self._steps = {c: _steps(c) for c in module.computations}

    def run(self, node: int, parameters) -> Generator[Stop, Sequence[np.ndarray], tuple]:
        """Run the program as one node does.

        Args:
          node: its partition id.
          parameters: arrays for the entry's parameters, in `Types.of` their types.

        Yields:
          Each collective, in order. What the node receives, for each operand, is to be sent in.

        Returns:
          The results, a flat tuple.

        Raises:
          Unauditable: something in the program is not understood, or a shape does not fit.
        """
        entry = self.module.entry
        if len(parameters) != len(entry.parameters):
            raise Unauditable(
                f"{self.module.name}: expected {len(entry.parameters)} parameters,"
                f" got {len(parameters)}"
            )
        for p, x in zip(entry.parameters, parameters, strict=True):
            self._check(p.name, p.shape, x)
        result = yield from _Node(self, node).run(entry, parameters)
        return result if isinstance(result, tuple) else (result,)

    def _check(self, where: str, shape: Shape, x) -> None:
        want = shape.dims, self.types.of(shape.dtype)
        if (np.shape(x), x.dtype) != want:
            raise Unauditable(f"{where}: expected {want}, got {np.shape(x)} {x.dtype}")


class _Node:
    """The program as one node runs it."""

    def __init__(self, evaluator: Evaluator, node: int):
        self.types, self.node, self.check = evaluator.types, node, evaluator._check
        self.steps = evaluator._steps

    def run(self, computation: Computation, arguments):
        """A generator, as `Evaluator.run` is, of a computation's result."""
        values: dict[Instruction, object] = {}
        for i, last in self.steps[computation]:
            operands = [values[o] for o in i.operands]
            for o in last:
                del values[o]
            if i.opcode == "parameter":
                values[i] = arguments[i["parameter_number"]]
                continue
            opcode = i.opcode.removesuffix("-start")
            if opcode in COLLECTIVES:
                value = yield from self._collective(i, operands)
            elif i.opcode in _CALLS:
                value = yield from _CALLS[i.opcode](self, i, operands)
            else:
                value = self._checked(i, operands)
            values[i] = value
        return values[computation.root]

    def _collective(self, i: Instruction, operands):
        # An all-gather-start has its operands and its results as its shape.
        shape = i.shape.elements[1] if i.opcode == "all-gather-start" else i.shape
        targets = shape.elements or (shape,)
        if len(targets) != len(operands):
            raise Unauditable(f"{i.name}: expected a result for each operand, got {i.shape}")
        received = yield Stop(i, tuple(map(_plain, operands)), targets)
        for target, x in zip(targets, received, strict=True):
            self.check(i.name, target, x)
        return tuple(received) if shape.elements else received[0]

    def _call(self, i: Instruction, operands):
        return (yield from self.run(i.called[0], operands))

    def _while(self, i: Instruction, operands):
        body, condition = i.called
        (state,) = operands
        for _ in range(_LONGEST):
            if not (yield from self.run(condition, [state])):
                return state
            state = yield from self.run(body, [state])
        raise Unauditable(f"{i.name}: expected a loop of at most {_LONGEST} iterations")

    def _conditional(self, i: Instruction, operands):
        which, last = operands[0], len(i.called) - 1
        if which.dtype == bool:
            branch = 0 if which else 1
        else:
            branch = int(which) if 0 <= which <= last else last
        return (yield from self.run(i.called[branch], [operands[branch + 1]]))

    def _fusion(self, i: Instruction, operands):
        try:
            next(self.run(i.called[0], operands))
        except StopIteration as done:
            return done.value
        raise Unauditable(f"{i.name}: expected no collective in a fusion")

    def _checked(self, i: Instruction, operands):
        """What XLA's parser lets through need not fit: no text may end in another error."""
        try:
            with np.errstate(all="ignore"):
                return self._local(i, operands)
        except Unauditable:
            raise
        except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as e:
            raise Unauditable(f"{i.name}: expected operands that fit, got {e!r}") from e

    def _local(self, i: Instruction, operands):
        match i.opcode:
            case "fusion":
                return self._fusion(i, operands)
            case "tuple":
                return tuple(operands)
            case "get-tuple-element":
                return operands[0][i["tuple_index"]]
            case "opt-barrier" | "optimization-barrier" | "async-update":
                return operands[0]
            case "async-done" | "all-gather-done" | "all-reduce-done" | "copy-done" | "copy-start":
                return operands[0]
            case "partition-id":
                return np.array(self.node).astype(self.types.of(i.shape.dtype))
            case "replica-id":
                return np.array(0).astype(self.types.of(i.shape.dtype))
            case "custom-call" if i["custom_call_target"] in GEMMS:
                return sums.gemm(i, self.types, *map(_plain, operands))
            case "custom-call":
                raise Unauditable(f"{i.name}: expected a known call, got {i['custom_call_target']}")
        run = _LOCAL.get(i.opcode)
        if run is None:
            raise Unauditable(f"{i.name}: expected a known operator, got {i.opcode}")
        if i.opcode in _VIEWS and isinstance(operands[0], Product):
            return operands[0].map(functools.partial(run, i, self.types))
        if i.opcode != "reduce":
            operands = map(_plain, operands)
        value = run(i, self.types, *operands)
        if not isinstance(value, Product):
            self.check(i.name, i.shape, value)
        return value


_CALLS = {
    "call": _Node._call,
    "async-start": _Node._call,
    "while": _Node._while,
    "conditional": _Node._conditional,
}


def _plain(x):
    return x.value() if isinstance(x, Product) else x


def _steps(computation: Computation) -> list[tuple[Instruction, list[Instruction]]]:
    """The instructions in order, each with the operands that nothing reads after it."""
    last: dict[Instruction, Instruction] = {}
    for i in computation.instructions:
        last |= dict.fromkeys(i.operands, i)
    last.pop(computation.root, None)
    gone: dict[Instruction, list[Instruction]] = {}
    for operand, i in last.items():
        gone.setdefault(i, []).append(operand)
    return [(i, gone.get(i, [])) for i in computation.instructions]
