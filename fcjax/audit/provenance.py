"""The provenance walk: what every value of the program is made of, from its inputs to its results.

It interprets the entry computation once, with facts in place of numbers (`values`), follows calls,
fusions and asynchronous pairs into the computations they name, and judges every array that a
collective moves (`judging`). Branches are not followed, and loops only if they count and there
is no contract: what comes out of them is state in an unknown order, which may not leave the node,
and `traffic` forbids collectives inside.
"""

import dataclasses

from fcjax.audit.crossing import Crossing
from fcjax.audit.domain import digits as dg
from fcjax.audit.domain.roles import Complete, Public, Role, Signature, State, Table, Weight
from fcjax.audit.domain.values import Kind, Trail, Tree, Value, leaves, mixed, public
from fcjax.audit.hlo import called
from fcjax.audit.hlo.graph import Computation, Instruction, Module, Shape, Unauditable
from fcjax.audit.judging import judge
from fcjax.audit.rules import contraction, folded, local, loops, traffic
from fcjax.audit.rules.exchange import Declared, Exchanges


@dataclasses.dataclass(frozen=True)
class Flow:
    """What the walk found.

    Attributes:
      crossings: arrays that collectives move, in the order of the schedule.
      results: what each array of the program's result is.
      loops: those that were followed round by round.
    """

    crossings: tuple[Crossing, ...]
    results: tuple[Value, ...]
    loops: frozenset[Instruction] = frozenset()


def walk(
    module: Module,
    signature: Signature,
    exchanges: tuple[Declared, ...] = (),
    unroll: bool = False,
) -> Flow:
    """Follow every value of the program; its parameters must be those of the signature.

    Args:
      unroll: follow loops that count, round by round; otherwise no loop is followed.
    """
    walker = Walker(signature, Exchanges(exchanges), unroll)
    parameters = [
        entry_value(p.shape, role)
        for p, role in zip(module.entry.parameters, signature.parameters, strict=True)
    ]
    result = walker.run(module.entry, parameters)
    return Flow(
        tuple(walker.crossings), tuple(leaves(result)), frozenset(walker.loops - walker.lost)
    )


def entry_value(shape: Shape, role: Role) -> Value:
    """What the caller says about an entry parameter."""
    match role:
        case State():
            total = (role.name,)
            return Value(
                Kind.STATE, shape, role.digits("state"), sum=total, reads=frozenset([total])
            )
        case Weight():
            rows = role.rows if isinstance(role, Table) else ""
            dims = role.digits("weight")
            return Value(Kind.WEIGHT, shape, dims, origin=role.name, rows=rows)
        case Public():
            return public(shape, f"public input {role.name}").replace(dims=role.digits("state"))
        case Complete():
            raise Unauditable(f"{role.name}: expected a shard of state as input, got all of it")


class Walker:
    """Steps through computations; `holding` steps on with other questions."""

    def __init__(self, signature: Signature, exchanges: Exchanges, unroll: bool = False):
        self.signature, self.exchanges, self.unroll = signature, exchanges, unroll
        self.loops: set[Instruction] = set()
        self.lost: set[Instruction] = set()  # loops that were not followed, here or there
        self.crossings: list[Crossing] = []

    def run(self, computation: Computation, arguments: list[Tree]) -> Tree:
        parameters = computation.parameters
        if len(parameters) != len(arguments):
            raise Unauditable(
                f"{computation.name}: expected {len(parameters)} arguments, got {len(arguments)}"
            )
        known: dict[Instruction, Tree] = dict(zip(parameters, arguments, strict=True))
        for i in computation.instructions:
            if i.opcode != "parameter":
                known[i] = self.checked_step(i, [known[o] for o in i.operands])
            _check_shape(i, known[i])
        return known[computation.root]

    def checked_step(self, i: Instruction, operands: list[Tree]) -> Tree:
        """XLA's parser does not check that operands and attributes fit; the rules rely on it."""
        try:
            return self.step(i, operands)
        except Unauditable:
            raise
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as e:
            text = f"{i.name}: expected operands that fit {i.opcode}, got {e}"
            raise Unauditable(text) from None

    def step(self, i: Instruction, operands: list[Tree]) -> Tree:
        match i.opcode:
            case "tuple":
                return tuple(operands)
            case "get-tuple-element":
                return _element(i, operands[0])
            case "fusion" | "call" | "async-start":
                (body,) = i.called
                return self.run(body, operands)
            case "opt-barrier" | "async-update" | "async-done" | "copy-done" | "add-dependency":
                return operands[0]
            case "all-gather-done" | "all-reduce-done" | "collective-permute-done":
                return operands[0]
            case "copy-start":
                return operands[0].replace(trail=Trail(i, operands[0].trail))
            case "after-all":
                return ()
            case "while" if self.unroll:
                return self.rounds(i, operands[0])
            case "while" | "conditional" | "custom-call":
                return self.opaque(i, operands)
            case _ if i.opcode in traffic.TRANSFERS:
                return _tree(i, i.shape, operands)
            case _ if i.opcode in traffic.COLLECTIVES:
                return self.collective(i, operands)
        out = local.apply(i, operands)
        if self.unroll and isinstance(out, Value):
            out = loops.numbered(i, operands, out)
        return out

    def rounds(self, i: Instruction, state: Tree) -> Tree:
        """What a loop leaves, if the number of its rounds can be followed."""
        body, condition = loops.parts(i)
        before = state
        for _ in range(loops.ROUNDS):
            going = loops.number(self.run(condition, [state]))
            if going == 0:
                self.loops.add(i)
                return state
            if going is None:
                break
            state = self.run(body, [state])
        self.lost.add(i)
        return self.opaque(i, [before])

    def opaque(self, i: Instruction, operands: list[Tree]) -> Tree:
        if i.opcode == "custom-call" and i["custom_call_target"] in called.GEMMS:
            return _gemm(i, operands)
        return _tree(i, i.shape, operands)

    def collective(self, i: Instruction, operands: list[Tree]) -> Tree:
        shapes = traffic.result(i).leaves()
        if i.opcode not in traffic.JUDGED or len(shapes) != len(operands):
            out = [mixed(i, shape, operands) for shape in shapes]  # `traffic` reports it
            out = [v.replace(complete=v.kind is Kind.STATE) for v in out]
        else:
            out = [self.crossed(i, *facts) for facts in zip(operands, shapes, strict=True)]
        return out[0] if len(out) == 1 and traffic.result(i).dtype != "tuple" else tuple(out)

    def crossed(self, i: Instruction, operand: Value, shape: Shape) -> Value:
        """What each node receives of one array; its parts are judged one by one."""
        if operand.parts and i.opcode == "reduce-scatter" and i["dimensions"] != (operand.along,):
            sizes = [v.shape.dims[operand.along] for v in operand.parts]
            shapes = [folded.with_size(shape, operand.along, n) for n in sizes]
            pairs = zip(operand.parts, shapes, strict=True)
            return folded.together(i, shape, operand, [self.crossed(i, *p) for p in pairs])
        crossing = judge(i, operand, shape, self.signature, self.exchanges)
        self.crossings.append(crossing)
        return crossing.result


def _element(i: Instruction, operand: Tree) -> Tree:
    index = i["tuple_index"]
    if isinstance(operand, Value) or not 0 <= index < len(operand):
        raise Unauditable(f"{i.name}: expected element {index} of a tuple")
    return operand[index]


def _tree(i: Instruction, shape: Shape, operands: list[Tree]) -> Tree:
    """The result of something that is not followed: any function of its operands."""
    if shape.dtype == "tuple":
        return tuple(_tree(i, element, operands) for element in shape.elements)
    if shape.dtype == "token":
        return ()
    return mixed(i, shape, leaves(tuple(operands)))


def _check_shape(i: Instruction, tree: Tree) -> None:
    """The rules rely on shapes that fit, and XLA's parser does not promise them."""
    if isinstance(tree, Value) and i.shape.dtype not in ("tuple", "token"):
        sizes = tuple(dg.size(d) for d in tree.dims)
        if sizes != i.shape.dims:
            raise Unauditable(f"{i.name}: expected shape {sizes}, got {i.shape}")


def _gemm(i: Instruction, operands: list[Tree]) -> Tree:
    """cuBLAS: (result, workspace) = lhs . rhs, if nothing is scaled, added or fused after it."""
    config, numbers = i.config().get("gemm_backend_config", {}), called.gemm_dimensions(i)
    plain = (
        config.get("alpha_real") == 1
        and not config.get("alpha_imag")
        and not config.get("beta")
        and config.get("epilogue", "DEFAULT") == "DEFAULT"
        and len(operands) == 2
        and numbers is not None
    )
    if not plain:
        return _tree(i, i.shape, operands)
    result = contraction.dot(i, *operands, numbers)
    if i.shape.dtype != "tuple":
        return result
    return (result, *(public(s, "a workspace") for s in i.shape.elements[1:]))
