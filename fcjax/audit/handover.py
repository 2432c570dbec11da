"""The answer of `handed` about one program, as data and as a table."""

import dataclasses

from fcjax.table import aligned


@dataclasses.dataclass(frozen=True)
class Holds:
    """What the nodes have of one array.

    Attributes:
      what: "complete", "partial sum", "own shard", "another's shard", "statistic", "not followed";
        "weight" or "public" for what holds no state.
      words: the same with coordinates.
      whole: it is, or is made of, state that a node holds complete.
    """

    what: str
    words: str
    whole: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """One array that one instruction hands over.

    Attributes:
      kind: "all-reduce", ..., or the call or transfer that leaves the node.
      instruction: its name in the program.
      scope: its `op_name`.
      groups: the nodes that exchange, group by group; of a permute (source, target).
      bytes: handed to each node, once.
      times: how often in a step; None where a loop does not say.
      states, weights, public: names of the inputs that reach it.
      since: weights that it was made with since state last crossed.
      before: what each node puts in.
      after: what each node ends up with.
    """

    kind: str
    instruction: str
    scope: str
    groups: tuple[tuple[int, ...], ...]
    bytes: int
    times: int | None
    states: tuple[str, ...]
    weights: tuple[str, ...]
    public: tuple[str, ...]
    since: tuple[str, ...]
    before: Holds
    after: Holds

    def cells(self, nodes: int) -> tuple[str, ...]:
        """Its line in the table."""
        groups = ["{" + ",".join(map(str, g)) + "}" for g in self.groups]
        among = f"all {nodes}" if len(self.groups) == 1 else " ".join(groups)
        if self.kind == "collective-permute":
            among = " ".join(f"{a}>{b}" for a, b in self.groups)
        times = "?" if self.times is None else str(self.times)
        made_of = ", ".join(filter(None, [_names(self.states), _names(self.public)]))
        by = _names(self.since) if self.states else _names(self.weights)
        made = self.before.whole and self.before.what != "complete"
        words = self.before.words + ", of complete state" * made
        return (
            self.kind, among, f"{self.bytes:,}", times, made_of or "-", by or "-", words,
            self.after.words, self.scope,
        )


@dataclasses.dataclass(frozen=True)
class Handed:
    """Who is handed what by one program.

    Attributes:
      program: its name.
      nodes: how many run it.
      inputs: what the nodes have of each state when the program starts, by name.
      weights: how many weights each node holds in blocks, and how many complete.
      rows: everything that is handed over, in the order of the program.
      results: what the nodes have of each result.
    """

    program: str
    nodes: int
    inputs: dict[str, Holds]
    weights: tuple[int, int]
    rows: tuple[Row, ...]
    results: tuple[Holds, ...]

    @property
    def ok(self) -> bool:
        """No node starts with, or is handed, more than shards, sums and statistics of its own."""
        told = [*self.inputs.values(), *(row.after for row in self.rows)]
        return not any(holds.what in _MORE for holds in told)

    def as_dict(self) -> dict:
        """The same as plain data."""
        return dataclasses.asdict(self)

    def text(self) -> str:
        """The same as a table, for people."""
        handed = [r.bytes * r.times if r.times is not None else None for r in self.rows]
        known = sum(n for n in handed if n is not None)
        more = " and what loops of unknown length hand over" if None in handed else ""
        inputs = [(f"  {name}", holds.words) for name, holds in self.inputs.items()]
        weights = f"{self.weights[0]} in blocks, {self.weights[1]} complete"
        plural = "" if len(self.rows) == 1 else "s"
        lines = [
            f"{self.program}: {self.nodes} nodes, {len(self.rows)} transfer{plural},"
            f" {known:,} bytes handed to each node in a step{more}",
            "",
            "what each node starts with:",
            aligned([*inputs, ("  weights", weights)], "<"),
            "",
            "what is handed over:",
        ]
        titles = ("", "kind", "among", "bytes", "times", "made of", "by", "each node puts in")
        rows = [(*titles, "and ends up with", "where")]
        rows += [(f"  {n}", *row.cells(self.nodes)) for n, row in enumerate(self.rows, 1)]
        lines += [aligned(rows, "<<<>><") if self.rows else "  nothing"]
        results = [(f"  result {n}", holds.words) for n, holds in enumerate(self.results)]
        lines += ["", "what each node ends with:", aligned(results, "<") if results else ""]
        return "\n".join([*lines, "", self.verdict()])

    def verdict(self) -> str:
        """In a sentence: does any node have more than shards, sums and statistics of its own?"""
        inputs = [name for name, holds in self.inputs.items() if holds.what == "complete"]
        said = [f"Every node starts with all coordinates of {', '.join(inputs)}."] * bool(inputs)
        for what, words in _MORE.items():
            rows = [n for n, row in enumerate(self.rows, 1) if row.after.what == what]
            said += [words.format(_numbers(rows))] * bool(rows)
        return " ".join(said) or "No node starts with, or is handed, complete state."


_MORE = {
    "complete": "Complete state is handed to nodes by {}.",
    "another's shard": "Shards of other nodes are handed to nodes by {}.",
    "not followed": "What nodes have after {} could not be followed.",
}


def _numbers(rows: list[int]) -> str:
    """1, 2, 3, 5 as "1-3, 5"."""
    runs: list[list[int]] = []
    for n in rows:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


def _names(names: tuple[str, ...]) -> str:
    """One or two names, or the first one and how many more there are."""
    return ", ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more"
