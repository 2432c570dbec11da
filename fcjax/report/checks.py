"""What was checked: each thing that the record tells, counted over the whole run."""

from fcjax.report.folder import Run
from fcjax.report.markup import Markup, el, figure, fold, many, mark, size, table

Check = tuple[str, Markup | str, bool | None]


def checks(run: Run) -> Markup:
    """Each thing that was looked at, counted from the files."""
    rows = [[name, found, mark(passed)] for name, found, passed in _checks(run)]
    return el(
        "section",
        el("h2", "What was checked"),
        table(("check", "found in the record", "verdict"), rows, class_="checks"),
        _held(run),
        id="checks",
    )


def failed(run: Run) -> list[str]:
    """The names of the checks that failed."""
    return [name for name, _, passed in _checks(run) if passed is False]


def _checks(run: Run):
    starts = list(run.starts.values())
    passes = [p for s in starts for p in s.passes]
    yield _audit(run)
    yield _same_program(starts, passes)
    yield _ledger(run)
    yield _other_ledgers(starts)
    if run.job["whole"]:
        yield _public(run, starts)
    else:
        yield _gather(starts, passes)
    yield _live(starts)
    moved = sum(p.moved for p in passes)
    yield (
        "KV caches stay with their owners",
        f"{many(moved, 'pass')} of {len(passes):,} in which a cache's buffer was elsewhere than in"
        " the pass before",
        moved == 0 if passes else None,
    )
    yield _parity(run)
    yield _cache_parity(run, starts)
    yield _trace(starts)
    yield _ran(starts, passes)
    processes = {
        (s.environment["process"]["pid"], s.environment["process"]["started"])
        for s in [*starts, *run.failed]
        if s.environment
    }
    opened = sum(s.environment is not None for s in [*starts, *run.failed])
    yield (
        "Cold starts are processes of their own",
        f"{many(len(processes), 'pair')} of process id and starting time for"
        f" {many(opened, 'start')} that began; {many(len(run.failed), 'attempt')} failed",
        len(processes) == opened if opened else None,
    )


def _audit(run: Run) -> Check:
    verdicts = [c["verdict"] for s in run.starts.values() for c in s.certificates.values()]
    gathers = sum(x["kind"] == "all-gather" for v in verdicts for x in v["before"])
    counts = sorted({len(v["before"]) for v in verdicts})
    inside = " or ".join(map(str, counts))
    return (
        "The compiled program moves only what the plan allows",
        f"{sum(v['ok'] for v in verdicts)} of {many(len(verdicts), 'audited program')} clean;"
        f" {inside or 0} collectives inside the interval; {many(gathers, 'all-gather')} among them",
        all(v["ok"] for v in verdicts) and gathers == 0 if verdicts else None,
    )


def _same_program(starts, passes) -> Check:
    audited = {c["program"]["sha256"] for s in starts for c in s.certificates.values()}
    same = sum(p.hlo in audited for p in passes)
    return (
        "The program that ran is the audited one",
        f"{same:,} of {len(passes):,} passes, by the hash of its HLO",
        same == len(passes) if passes else None,
    )


def _ledger(run: Run) -> Check:
    owners = run.owners
    good = owners.disjoint == owners.covering == owners.as_planned == owners.entries
    return (
        "The shards are disjoint, cover the state, and lie as planned",
        f"{owners.entries:,} entries (one for each state tensor, boundary and pass):"
        f" {owners.disjoint:,} disjoint, {owners.covering:,} covering, {owners.as_planned:,} as"
        f" planned; {owners.measured:,} of them measured on real buffers,"
        f" {owners.entries - owners.measured:,} known from the audited program",
        good if owners.entries else None,
    )


def _other_ledgers(starts) -> Check:
    steps = sum(len(s.steps) for s in starts)
    other = sum(s.other_ledgers for s in starts)
    shown = [s.shown["ledger"] for s in starts if s.shown]
    same = all(x == shown[0] for x in shown)
    text = (
        f"{steps - other:,} of {steps:,} decode steps have the ledger that their start began with"
    )
    if len(shown) > 1:
        text += ", and all starts the same" if same else ", but the starts differ"
    return "Owners and transfers are the same in every step", text, None if not shown else (
        other == 0 and same
    )


def _gather(starts, passes) -> Check:
    agree = sum(p.copies_agree is True for p in passes)
    after = sorted({
        len(c["verdict"]["after"]) for s in starts for c in s.certificates.values()
    })
    return (
        "Behind the interval: the compatibility all-gather",
        f"{' or '.join(map(str, after)) or 0} in the program, outside the claim; its copies equal"
        f" the shards bit for bit in {agree:,} of {len(passes):,} passes",
        agree == len(passes) if passes else None,
    )


def _public(run: Run, starts) -> Check:
    steps = sum(len(s.steps) for s in starts)
    public = sum(s.public for s in starts)
    after = sum(len(c["verdict"]["after"]) for s in starts for c in s.certificates.values())
    return (
        "Only the chosen token becomes public",
        f"in {public:,} of {steps:,} decode steps, with what the exchanges find that choose it;"
        f" {many(after, 'transfer')} after the interval",
        public == steps and after == 0 if steps else None,
    )


def _live(starts) -> Check:
    unknown = [s.live[when].get("unaccounted") for s in starts for when in s.live]
    unknown = [x[0] for x in unknown if x is not None]
    return (
        "Every array of the process is accounted for",
        f"at entry and exit of a pass at most {many(max(unknown, default=0), 'array')} of no known"
        " class or with all coordinates of a state tensor on one device",
        max(unknown) == 0 if unknown else None,
    )


def _held(run: Run) -> Markup | None:
    """The classes of live arrays, as large as they were in any pass."""
    found: dict[str, list] = {}
    for column, when in enumerate(("entry", "exit")):
        for start in run.starts.values():
            for kind, (arrays, held) in start.live[when].items():
                row = found.setdefault(kind, [(0, 0), (0, 0)])
                row[column] = max(row[column], (arrays, held))
    if not found:
        return None
    rows = [
        [kind.replace("_", " "), *(x for arrays, held in row for x in (f"{arrays:,}", size(held)))]
        for kind, row in sorted(found.items())
    ]
    return fold(
        "Arrays of the process at the interval's entry and exit",
        el("p", "The most of any pass. The reference is the unsharded model of the parity check: it"
           " holds the complete state, outside the nodes' programs.",
           None if run.job["whole"] else " Complete are the results of the all-gather after the"
           " interval.", class_="legend"),
        table(("class", "arrays at entry", "bytes", "arrays at exit", "bytes"), rows,
              numeric=(1, 2, 3, 4)),
    )


def _parity(run: Run) -> Check:
    worst = run.worst
    if not worst:
        return "The numbers agree with the unsharded reference", "not compared", None
    text = ", ".join(f"{name} {figure(x)}" for name, x in worst.items())
    return (
        "The numbers agree with the unsharded reference",
        f"worst of all passes: {text}; bound {figure(run.job['bound'])}",
        all(x <= run.job["bound"] for x in worst.values()),
    )


def _cache_parity(run: Run, starts) -> Check:
    caches = [s.summary["caches"] for s in starts if s.summary]
    worst = [float(c["worst"]) for c in caches if c["worst"] is not None]
    padding = all(c["padding_zero"] for c in caches)
    text = f"worst of all layers at the end: {figure(max(worst))}" if worst else "not compared"
    if caches:
        text += "; padding all zero" if padding else "; padding not zero"
    good = padding and all(x <= run.job["bound"] for x in worst)
    return "The KV caches agree with the reference's", text, good if worst or not padding else None


def _ran(starts, passes) -> Check:
    seen = sum(s.observed for s in starts)
    if not seen:
        text = "records of this format do not say" if passes else "no pass"
        return "Nothing else ran in a pass, and the host read no state", text, None
    traced, strange = sum(p.traced for p in passes), sum(s.strange for s in starts)
    return (
        "Nothing else ran in a pass, and the host read no state",
        f"{strange:,} of {many(seen, 'pass')} with another program, copy or read; the host's reads"
        f" were noted in all, the programs by the profiler in {traced:,}, drawn at random",
        strange == 0 if traced else None,
    )


def _trace(starts) -> Check:
    traces = [s.summary["trace"] for s in starts if s.summary and s.summary["trace"]]
    faults = sum(len(t["faults"]) for t in traces)
    devices = sum(len(t["executions"]) for t in traces)
    text = (
        f"last step of {many(len(traces), 'start')}, {many(devices, 'execution')}:"
        f" {many(faults, 'difference')} from the audited program"
        if traces
        else "the backend gave no such trace"
    )
    return "The collectives that the profiler saw are the audited ones", text, (
        faults == 0 if traces else None
    )
