"""What may cross where no contract lists it: statistics of norms, and each product once."""

from collections.abc import Iterator, Sequence

from fcjax.audit.crossing import Contraction, Crossing, StatisticFound
from fcjax.audit.domain.values import Statistic, Value


def faults(
    crossings: Sequence[Crossing], results: Sequence[Value]
) -> Iterator[tuple[str, str, Crossing]]:
    """Crossings that no one needs: reason code, words, and which it is."""
    contractions = [c for c in crossings if isinstance(c, Contraction)]
    yield from _statistics(crossings, contractions, results)
    # What a weight makes of a state is dealt out once: dealt out over another axis, or in other
    # halves, it would add up on the nodes.
    for n, c in enumerate(contractions):
        if any(c.repeats(before) for before in contractions[:n]):
            text = f"{c.name} was dealt out before, of the same state or in other parts"
            yield "unplanned-collective", text, c


def _statistics(crossings, contractions: list[Contraction], results):
    """Each statistic belongs to a norm whose output is contracted.

    The norm's scale may follow the scatter: then what was scattered is used with the statistic.
    """
    values = [o.operand for o in contractions] + list(results)
    seen: set[Statistic] = set()
    for c in crossings:
        if not isinstance(c, StatisticFound):
            continue
        statistic = c.statistic
        of = [o for o in contractions if statistic.of in o.operand.reads]
        parts = {(o.name,) for o in of} | {statistic.of} if of else set()
        used = any(statistic in v.reads and parts & v.reads for v in values)
        inputs = {s.of for s in seen} | {statistic.of}
        if not used or statistic in seen or len(inputs) > len(contractions):
            yield "not-a-statistic", f"{statistic} normalises no further contraction", c
        seen.add(statistic)
