"""Holds a compiled program against its contract."""

import math

import jax

from fcjax.audit.contract import Contract, Expected
from fcjax.audit.crossing import (
    BEHIND,
    CONTRACTION,
    EXCHANGE,
    GATHER,
    NOTHING,
    STATISTIC,
    Crossing,
    holds,
)
from fcjax.audit.domain.roles import Complete, Public, State
from fcjax.audit.domain.values import Kind, Statistic, Value, is_split, words
from fcjax.audit.entry import entry_faults, fits, sharding_faults
from fcjax.audit.hlo.graph import Instruction, Module, Unauditable, parse
from fcjax.audit.provenance import Flow, walk
from fcjax.audit.rules import traffic
from fcjax.audit.verdict import Collective, Verdict, Violation


def audit_compiled(compiled, contract: Contract) -> Verdict:
    """Audit what ``jax.jit(f).lower(...).compile()`` returns: its program and its input layouts."""
    shardings = jax.tree.leaves(compiled.input_shardings)
    return audit_interval(compiled.as_text(), contract, shardings)


def audit_interval(text: str, contract: Contract, shardings=()) -> Verdict:
    """Audit the HLO text of one optimized program.

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
    violations = [*entry_faults(module, contract.signature)]
    violations += sharding_faults(shardings, contract.signature)
    if not fits(module, contract.signature):
        return Verdict(text, tuple(violations), (), ())
    check = _Check(module, contract, walk(module, contract.signature, contract.exchanges))
    check.crossings()
    # What never took place explains what came of it, so it is said first.
    check.causes = [*violations, *traffic.scan(module), *check.missing, *check.causes]
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
        spreads = (BEHIND,) if contract.after else (BEHIND, GATHER)
        self.spread = any(c.what in spreads for c in flow.crossings)

    def fail(self, code: str, text: str, c: Crossing | None = None, effect=False) -> None:
        violation = Violation(code, text)
        if c is not None:
            trail = c.operand.trail
            violation = Violation(
                code,
                text,
                line=self.module.line(c.instruction),
                scope=c.instruction.scope,
                path=tuple(trail.names()) if trail else (),
                holds=holds(c, self.signature.nodes),
            )
        (self.effects if effect else self.causes).append(violation)

    def crossings(self) -> None:
        left = list(self.contract.inside or ())
        for c in self.flow.crossings:
            if c.what in (NOTHING, GATHER):
                continue
            if c.fault:
                self.fail(*c.fault, c)
            elif c.what == BEHIND:
                self.fail("after-gather", "it moves state that was gathered", c, effect=True)
            elif self.contract.inside is not None:
                expected = next((e for e in left if _same_operator(e, c)), None)
                if expected is None:
                    text = f"the contract has no (further) {_name(c)}"
                    self.fail("unplanned-collective", text, c)
                else:
                    left.remove(expected)
                    self.compare(expected, c)
            self.before.append(_collective(_name(c), c))
        for expected in left:
            text = f"expected the {expected.kind} of {expected.operator}"
            missing = Violation("missing-collective", text)
            (self.effects if self.spread else self.missing).append(missing)
        if self.contract.inside is None:
            self.open_statistics()

    def compare(self, expected: Expected, c: Crossing) -> None:
        """One collective with its line of the contract."""
        found = _collective(expected.operator, c)
        for what, a, b in (
            ("axis", expected.axis, found.axis),
            ("elements sent", expected.sent, found.sent),
            ("elements received", expected.received, found.received),
        ):
            if a != b:
                code = "wrong-axis" if what == "axis" else "wrong-size"
                self.fail(code, f"{expected.operator}: expected {what} {a}, got {b}", c)
        # An exchange may also depend on less, and was held against its list when it was taken.
        if c.what != EXCHANGE and c.operand.reads != expected.reads:
            expected_reads, got = (_words(r) for r in (expected.reads, c.operand.reads))
            self.fail(
                "wrong-source", f"{expected.operator}: expected {expected_reads}, got {got}", c
            )

    def open_statistics(self) -> None:
        """Without a contract: each statistic belongs to a norm whose output is contracted."""
        contractions = [c for c in self.flow.crossings if c.what == CONTRACTION]
        seen: set[Statistic] = set()
        for c in self.flow.crossings:
            if c.what != STATISTIC or c.fault:
                continue
            statistic = Statistic(c.operand.product.of)
            used = any({statistic, statistic.of} <= o.operand.reads for o in contractions)
            if not used or statistic in seen or len(seen) >= len(contractions):
                self.fail("not-a-statistic", f"{statistic} normalises no further contraction", c)
            seen.add(statistic)

    def gather(self) -> None:
        """One all-gather instruction at most, of exactly the interval's end, after all else."""
        expected = self.contract.after
        by_instruction: dict[Instruction, list[Crossing]] = {}
        for c in self.flow.crossings:
            if c.what == GATHER:
                by_instruction.setdefault(c.instruction, []).append(c)
        planned = None
        for i, found in by_instruction.items():
            if expected is not None and (self.contract.inside is None or _is(expected, found)):
                planned = i
        code = "early-gather"
        for i, found in by_instruction.items():
            if i is planned:
                self.after = [_collective(expected.operator, c) for c in found]
                self.schedule(planned)
                code = "extra-gather"
            else:
                self.fail(code, "an all-gather of state that the contract does not have", found[0])
                self.before.append(_collective("(violation)", found[0]))
        if expected is not None and planned is None:
            self.fail("missing-collective", f"expected the {expected.operator}", effect=self.spread)

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
                path = tuple(value.trail.names()) if value.trail else ()
                violation = Violation(fault[0], f"result {role.name}: {fault[1]}", path=path)
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
    return i.opcode in ("call", "async-start") and any(
        _contains(inner, instructions) for c in i.called for inner in c.instructions
    )


def _is(expected: Expected, crossings: list[Crossing]) -> bool:
    reads = frozenset().union(*(c.operand.reads for c in crossings))
    sent = sum(math.prod(c.operand.shape.dims) for c in crossings)
    return (reads, sent) == (expected.reads, expected.sent)


def _name(c: Crossing) -> str:
    if c.what == CONTRACTION:
        return c.operand.product.weight
    if c.what == STATISTIC:
        return str(Statistic(c.operand.product.of))
    if c.what == EXCHANGE:
        return c.exchange.name
    return "(violation)"


def _same_operator(expected: Expected, c: Crossing) -> bool:
    product = c.operand.product
    if c.what == EXCHANGE:
        return expected.exchange == c.exchange
    if expected.exchange is not None:
        return False
    if c.what == STATISTIC:
        return expected.of == product.of
    return expected.of is None and expected.operator == product.weight


def _collective(operator: str, c: Crossing) -> Collective:
    trail = c.operand.trail
    return Collective(
        operator=operator,
        kind=c.kind,
        instruction=c.instruction.name,
        scope=c.instruction.scope,
        dtype=c.operand.shape.dtype,
        sent=math.prod(c.operand.shape.dims),
        received=math.prod(c.shape.dims),
        axis=c.axis.name if c.axis else "",
        reads=tuple(sorted(map(words, c.operand.reads))),
        path=tuple(trail.names()) if trail else (),
    )


def _words(reads) -> str:
    return "{" + ", ".join(sorted(map(words, reads))) + "}"
