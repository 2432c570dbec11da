"""What an audit says."""

import dataclasses

from fcjax.table import aligned


@dataclasses.dataclass(frozen=True)
class Violation:
    """One reason why the program is not what the plan allows.

    Attributes:
      code: the reason in one word; docs/AUDIT.md lists them.
      text: what is wrong.
      line: the offending instruction as XLA prints it, "" if there is none.
      scope: its `op_name`.
      path: how state reached it, from the last boundary.
      holds: which node ends up holding what.
    """

    code: str
    text: str
    line: str = ""
    scope: str = ""
    path: tuple[str, ...] = ()
    holds: str = ""

    def __str__(self):
        lines = [f"{self.code}: {self.text}"]
        if self.line:
            lines.append(f"  at    {self.line}")
        if self.scope:
            lines.append(f"  scope {self.scope}")
        if self.path:
            lines.append(f"  path  {' -> '.join(self.path)}")
        if self.holds:
            lines.append(f"  holds {self.holds}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of the program, as reports and certificates list it.

    Attributes:
      operator: the operator of the plan that it serves: a weight, a statistic, what an exchange
        finds; or what it is if it is none of them.
      kind: "reduce-scatter", "all-reduce" or "all-gather".
      instruction: its name in the HLO.
      scope: its `op_name`.
      dtype: element type on the wire.
      sent: elements of the operand on each node.
      received: elements of the result on each node.
      axis: the axis over which it is scattered or gathered, "" for a statistic or exchange.
      reads: the boundary values, statistics and exchanges that the operand is made of.
      path: the instructions from those to the operand.
    """

    operator: str
    kind: str
    instruction: str
    scope: str
    dtype: str
    sent: int
    received: int
    axis: str
    reads: tuple[str, ...]
    path: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of an audit.

    Attributes:
      hlo: the text of the program that was audited.
      violations: what is wrong; empty if the program keeps to its contract.
      before: collectives before the end of the interval.
      after: collectives after it: the compatibility all-gather.
      compared: whether the program was also run and every value compared with its definition; a
        program that the walk refuses is not.
    """

    hlo: str
    violations: tuple[Violation, ...]
    before: tuple[Collective, ...]
    after: tuple[Collective, ...]
    compared: bool = False

    @property
    def ok(self) -> bool:
        return not self.violations

    def to_json(self) -> dict:
        """The verdict as plain data, without the program."""
        return {
            "ok": self.ok,
            "compared": self.compared,
            "violations": [dataclasses.asdict(v) for v in self.violations],
            "before": [dataclasses.asdict(c) for c in self.before],
            "after": [dataclasses.asdict(c) for c in self.after],
        }

    def text(self, title: str) -> str:
        """The verdict as a report: every collective, then what is wrong."""
        rows = [("operator", "kind", "type", "sent", "received", "over")]
        for where, found in (("", self.before), (" (outside the claim)", self.after)):
            for c in found:
                sizes = str(c.sent), str(c.received)
                rows.append((_short(c.operator) + where, c.kind, c.dtype, *sizes, c.axis or "-"))
        return f"{title}: {self}\n{aligned(rows, '<')}\n{self._checks()}"

    def _checks(self) -> str:
        """Which of the two checks said so."""
        if self.compared:
            values = "are those of their definition" if self.ok else "are NOT those of it"
            return f"walk: clean; identity: values sent, returned and kept {values}"
        return f"walk: {'clean' if self.ok else 'refused'}; identity: not run"

    def __str__(self):
        if self.ok:
            inside, after = len(self.before), len(self.after)
            return f"clean: {inside} collectives inside the interval, {after} after it"
        return "\n".join(map(str, self.violations))


def _short(operator: str) -> str:
    """A sum of many parts by its first and last."""
    parts = operator.split(" + ")
    return operator if len(parts) < 4 else f"{parts[0]} + ... + {parts[-1]} ({len(parts)} parts)"


class Failed(RuntimeError):
    """A program was not handed out, because its audit found violations."""

    def __init__(self, verdict: Verdict):
        super().__init__(f"the audit found {len(verdict.violations)} violations\n{verdict}")
        self.verdict = verdict
