"""Holds a compiled program against its contract: the walk, and then the identity of its values."""

import dataclasses
import hashlib

import jax

from fcjax.audit import identity, unlisted
from fcjax.audit.contract import Contract, Expected, ExpectedGather
from fcjax.audit.crossing import Again, Contraction, Crossing, Gathered
from fcjax.audit.domain.roles import Complete, Public, State
from fcjax.audit.domain.values import Kind, Value, is_split, words
from fcjax.audit.entry import entry_faults, fits, sharding_faults
from fcjax.audit.hlo.graph import Instruction, Module, Unauditable, parse
from fcjax.audit.provenance import Flow, walk
from fcjax.audit.rules import traffic, types
from fcjax.audit.verdict import Collective, Verdict, Violation


def audit_compiled(compiled, contract: Contract) -> Verdict:
    """Audit what ``jax.jit(f).lower(...).compile()`` returns: its program and its input layouts."""
    shardings = jax.tree.leaves(compiled.input_shardings)
    return audit_interval(compiled.as_text(), contract, shardings)


def audit_interval(text: str, contract: Contract, shardings=()) -> Verdict:
    """Audit the HLO text of one optimized program.

    The walk asks where everything that crosses came from. A program that it passes is run on random
    inputs and compared with the contract's definition, where it has one (`identity`). Both must
    pass.

    Args:
      text: as this process compiled it; other texts go through `guard.check` first.
      contract: what it may do.
      shardings: the layouts of its arguments as JAX has them, where they are known.

    Raises:
      Unauditable: the text cannot be parsed, or holds something that the audit does not understand.
    """
    module = parse(text)
    if not module.scheduled:
        raise Unauditable(f"{module.name}: expected a scheduled module, got one without an order")
    verdict = _walked(module, text, contract, shardings)
    if not verdict.ok or contract.definition is None:
        return verdict
    violations = _compared(module, text, contract)
    return dataclasses.replace(verdict, violations=violations, compared=True)


# Programs that passed in this process: nothing is learned from running one of them again.
_PASSED: set[tuple] = set()


def _compared(module: Module, text: str, contract: Contract) -> tuple[Violation, ...]:
    key = hashlib.sha256(text.encode()).digest(), contract.signature, contract.definition
    if key in _PASSED:
        return ()
    violations = identity.check(module, contract.signature, contract.definition)
    if not violations:
        _PASSED.add(key)
    return violations


def _walked(module: Module, text: str, contract: Contract, shardings) -> Verdict:
    violations = [*entry_faults(module, contract.signature)]
    violations += sharding_faults(shardings, contract.signature)
    if not fits(module, contract.signature):
        return Verdict(text, tuple(violations), (), ())
    flow = walk(module, contract.signature, contract.exchanges, unroll=contract.inside is None)
    check = _Check(module, contract, flow)
    check.crossings()
    # What never took place explains what came of it, so it is said first.
    visible = (*traffic.scan(module, flow.loops), *types.scan(module, contract.signature))
    check.causes = [*violations, *visible, *check.missing, *check.causes]
    check.gather()
    check.results()
    check.aliases()
    found = check.causes or check.effects
    if check.causes and check.spread:
        found += [v for v in check.effects if v.code == "missing-collective"][:1]
    return Verdict(text, tuple(found), tuple(check.before), tuple(check.after))


class _Check:
    """Collects violations: causes, and effects that say nothing new where there is a cause."""

    def __init__(self, module: Module, contract: Contract, flow: Flow):
        self.module, self.contract, self.flow = module, contract, flow
        self.signature = contract.signature
        self.causes: list[Violation] = []
        self.effects: list[Violation] = []
        self.missing: list[Violation] = []
        self.before: list[Collective] = []
        self.after: list[Collective] = []
        # Is state about that crossed in a gather or a violation? It makes what follows an effect.
        spreads = (Again,) if contract.after else (Again, Gathered)
        self.spread = any(isinstance(c, spreads) for c in flow.crossings)

    def fail(self, code: str, text: str, c: Crossing | None = None, effect=False) -> None:
        violation = Violation(code, text)
        if c is not None:
            violation = Violation(
                code,
                text,
                line=self.module.line(c.instruction),
                scope=c.instruction.scope,
                path=_path(c.operand),
                holds=c.holds(self.signature.nodes),
            )
        (self.effects if effect else self.causes).append(violation)

    def crossings(self) -> None:
        left = list(self.contract.inside or ())
        for c in self.flow.crossings:
            if not c.crosses or isinstance(c, Gathered):
                continue
            if c.fault:
                self.fail(*c.fault, c)
            elif isinstance(c, Again):
                self.fail("after-gather", "it moves state that was gathered", c, effect=True)
            elif self.contract.inside is not None:
                line = next((e for e in left if c.serves(e)), None)
                if line is None:
                    text = f"the contract has no (further) {c.name}"
                    self.fail(c.unplanned, text, c)
                    if isinstance(c, Contraction):  # state that no node was to have: said first
                        self.missing.append(self.causes.pop())
                else:
                    left.remove(line)
                    self.compare(line, c)
            self.before.append(_collective(c.name, c))
        for line in left:
            text = f"expected the {line.kind.opcode} of {line.operator}"
            missing = Violation("missing-collective", text)
            (self.effects if self.spread else self.missing).append(missing)
        if self.contract.inside is None:
            for fault in unlisted.faults(self.flow.crossings, self.flow.results):
                self.fail(*fault)

    def compare(self, line: Expected, c: Crossing) -> None:
        """One collective with its line of the contract."""
        got = _collective(line.operator, c)
        for code, what, a, b in (
            ("wrong-axis", "axis", line.axis, got.axis),
            ("wrong-size", "elements sent", line.sent, got.sent),
            ("wrong-size", "elements received", line.received, got.received),
        ):
            if a != b:
                self.fail(code, f"{line.operator}: expected {what} {a}, got {b}", c)
        if line.exact and c.operand.reads != line.reads:
            expected, reads = _words(line.reads), _words(c.operand.reads)
            self.fail("wrong-source", f"{line.operator}: expected {expected}, got {reads}", c)

    def gather(self) -> None:
        """One all-gather instruction at most, of exactly the interval's end, after all else."""
        line = self.contract.after
        by_instruction: dict[Instruction, list[Crossing]] = {}
        for c in self.flow.crossings:
            if isinstance(c, Gathered):
                by_instruction.setdefault(c.instruction, []).append(c)
        planned = None
        for i, gathered in by_instruction.items():
            if line is not None and (self.contract.inside is None or _is_end(line, gathered)):
                planned = i
        code = "early-gather"
        for i, gathered in by_instruction.items():
            if i is planned:
                self.after = [_collective(line.operator, c) for c in gathered]
                self.schedule(planned)
                code = "extra-gather"
            else:
                text = "an all-gather of state that the contract does not have"
                self.fail(code, text, gathered[0])
                self.before.append(_collective(gathered[0].name, gathered[0]))
        if line is not None and planned is None:
            self.fail("missing-collective", f"expected the {line.operator}", effect=self.spread)

    def schedule(self, gather: Instruction) -> None:
        """Nothing of the interval crosses between nodes once the all-gather has started."""
        order = self.module.entry.instructions
        start = next((n for n, i in enumerate(order) if _contains(i, {gather})), len(order))
        others = {c.instruction for c in self.flow.crossings} - {gather}
        for i in order[start:]:
            # A transfer ends at its "-done", whose operand started it.
            if _contains(i, others) or any(
                i.opcode.endswith("-done") and _contains(o, others) for o in i.operands
            ):
                self.causes.append(
                    Violation(
                        "schedule",
                        "it runs after the compatibility all-gather has started",
                        line=self.module.line(i),
                        scope=i.scope,
                    )
                )

    def results(self) -> None:
        roles, values = self.signature.results, self.flow.results
        if len(roles) != len(values):
            self.fail("extra-result", f"expected {len(roles)} results, got {len(values)}")
            return
        for role, value, total in zip(roles, values, self.contract.sums, strict=True):
            fault = _result_fault(role, value, total)
            if fault:
                text = f"result {role.name}: {fault[1]}"
                violation = Violation(fault[0], text, path=_path(value))
                (self.effects if self.spread else self.causes).append(violation)

    def aliases(self) -> None:
        """A donated buffer may only become the same shard again."""
        roles = self.signature
        for alias in self.module.aliases:
            index = alias.output[0] if alias.output else 0
            if alias.parameter_index or len(alias.output) > 1 or index >= len(roles.results):
                raise Unauditable(f"alias {alias}: expected flat parameters and results")
            source, target = roles.parameters[alias.parameter], roles.results[index]
            if not isinstance(target, State) or source.shape != target.shape:
                self.fail(
                    "complete-alias", f"result {target.name} reuses the buffer of {source.name}"
                )


def _result_fault(role, value: Value, total) -> tuple[str, str] | None:
    if value.shape.dims != role.shape:
        return "complete-exit", f"expected shape {role.shape}, got {value.shape.dims}"
    if isinstance(role, Complete):
        return None if value.complete else ("wrong-result", "expected the gathered state")
    if isinstance(role, Public):
        if value.kind is not Kind.PUBLIC:
            return "extra-result", "expected a public value"
        chosen = total is None or value.sum == total
        return None if chosen else ("wrong-result", f"expected the {words(total)}")
    if value.complete:
        return "complete-exit", "expected a shard, got state that was gathered"
    if value.kind is not Kind.STATE:
        return "wrong-result", f"expected state, got {value.origin}"
    if total is not None and value.sum != total:
        return "wrong-result", f"expected {words(total)}, got {_words(value.reads)}"
    for axis, digits, own in zip(role.axes, value.dims, role.digits("state"), strict=True):
        if (axis.split or total) and digits != own:
            return "wrong-axis", f"expected {axis}, got coordinates {digits}"
        if not axis.split and any(is_split(d.state) for d in digits):
            return "wrong-axis", f"a split axis runs along {axis}"
    return None


def _contains(i: Instruction, instructions: set[Instruction]) -> bool:
    """Is it one of them, or does it run one of them?"""
    if i in instructions:
        return True
    return i.opcode in ("call", "async-start", "while") and any(
        _contains(inner, instructions) for c in i.called for inner in c.instructions
    )


def _is_end(line: ExpectedGather, crossings: list[Crossing]) -> bool:
    """Is what these arrays are made of, and how many elements they have, the interval's end?"""
    reads = frozenset().union(*(c.operand.reads for c in crossings))
    return (reads, sum(c.sent for c in crossings)) == (line.reads, line.sent)


def _collective(operator: str, c: Crossing) -> Collective:
    return Collective(
        operator=operator,
        kind=c.kind,
        instruction=c.instruction.name,
        scope=c.instruction.scope,
        dtype=c.operand.shape.dtype,
        sent=c.sent,
        received=c.received,
        axis=c.axis.name if c.axis else "",
        reads=tuple(sorted(map(words, c.operand.reads))),
        path=_path(c.operand),
    )


def _path(value: Value) -> tuple[str, ...]:
    """The instructions through which state came to a value."""
    return tuple(value.trail.names()) if value.trail else ()


def _words(reads) -> str:
    return "{" + ", ".join(sorted(map(words, reads))) + "}"
