"""What crosses between the nodes: the audit's collectives, with their bytes."""

from fcjax.report import charts
from fcjax.report.folder import Run
from fcjax.report.markup import Markup, code, el, fold, many, size, table
from fcjax.report.rows import groups, rows_of

_CROSSES = "What crosses: the audit's collectives, and bytes per reduction"
_COLUMNS = ("operator", "transfer", "over", "puts in", "receives", "read next by",
            "instruction")


def collectives(run: Run) -> Markup:
    """The audit's collectives with their bytes, and after them what is outside the claim."""
    rows, recorded = rows_of(run)
    if not recorded:
        none = el("p", "No decode step was recorded.")
        return el("section", el("h2", _CROSSES), none, _violations(run), id="bytes")
    outside = run.shown["outside_the_claim"]
    every = [r for row in rows for r in row["reductions"]]
    known = every + ([outside["reduction"]] if outside else [])
    most = max((r["operand"]["bytes"] for r in known), default=0)
    most = max([most] + [r["result"]["bytes"] for r in known])
    body = []
    for group in groups(rows, owners=False):
        shown = [_reduction(r, most) for row in group.rows for r in row["reductions"]]
        if not shown:
            continue
        if group.layers:
            body.append(_band(group.title))
        body += shown
        if len(group.layers) > 1:
            body.append(
                el("tr", el("td", _rest(group, most), colspan=len(_COLUMNS), class_="rest"))
            )
    total = [sum(r[x]["bytes"] for r in every) for x in ("operand", "result")]
    body.append(_total(f"{len(every)} collectives inside the interval", *total))
    if outside:
        body.append(_band("The interval has ended. Outside the claim:", "end"))
        body.append(_reduction(outside["reduction"], most, "outside"))
    count = "bytes and instructions of one decode step, per node"
    return el(
        "section",
        el("h2", _CROSSES),
        el("p", "One decode step, ", many(run.job["batch"], "row"), ". Sizes are those of the"
           " operand that each node puts in and of the result that it receives; what a node"
           " contributes to its own result is in both. An all-reduce here carries one number a"
           " row: the sum of squares of a norm",
           ", or what an exchange finds that chooses the token." if run.shown["public"] else "."),
        table(_COLUMNS, body, caption=f"Collectives: {count}", numeric=(3, 4),
              class_="collectives"),
        _exchanges(run),
        _violations(run),
        id="bytes",
    )


def _reduction(r: dict, most: int, class_: str | None = None) -> Markup:
    dim = r["received"]["dim"] if r.get("received") else "\u2013"
    readers = ", ".join(x["operator"] for x in r.get("read_by", ())) or (
        "the unmodified layers" if class_ else ""
    )

    def amount(i, value):
        bar = charts.bar(value, most, "bar out" if class_ else "bar")
        return el("td", size(value), bar, class_="num", data_label=_COLUMNS[i])

    return el(
        "tr",
        el("th", r["operator"], scope="row"),
        el("td", f"{r['kind']} {r['dtype']}", data_label=_COLUMNS[1]),
        el("td", dim, data_label=_COLUMNS[2]),
        amount(3, r["operand"]["bytes"]),
        amount(4, r["result"]["bytes"]),
        el("td", readers, data_label=_COLUMNS[5]),
        el("td", code(r["instruction"]), data_label=_COLUMNS[6]),
        class_=class_,
    )


def _band(text: str, class_: str = "band") -> Markup:
    return el("tr", el("th", text, colspan=len(_COLUMNS), scope="rowgroup"), class_=class_)


def _total(name: str, sent: int, got: int) -> Markup:
    return el(
        "tr",
        el("th", name, scope="row", colspan=3),
        el("td", size(sent), class_="num", data_label=_COLUMNS[3]),
        el("td", size(got), class_="num", data_label=_COLUMNS[4]),
        el("td", colspan=2, class_="void"),
        class_="total",
    )


def _rest(group, most) -> Markup:
    """The layers that do the same as the one that is shown."""
    body = [
        el(
            "tr",
            el("th", r["operator"], scope="row"),
            el("td", f"{r['kind']} {r['dtype']}", data_label="transfer"),
            el("td", size(r["operand"]["bytes"]), class_="num", data_label="in"),
            el("td", size(r["result"]["bytes"]), class_="num", data_label="out"),
            el("td", code(r["instruction"]), data_label="instruction"),
        )
        for rows in group.all_rows[1:]
        for row in rows
        for r in row["reductions"]
    ]
    first, last = group.layers[1], group.layers[-1]
    name = f"layer {first}" if first == last else f"layers {first} to {last}"
    return fold(
        f"The same in {name}: {many(len(body), 'collective')}",
        table(("operator", "transfer", "in", "out", "instruction"), body, numeric=(2, 3)),
    )


def _exchanges(run: Run) -> Markup | None:
    """With the whole model inside: how the token is chosen."""
    public = run.shown["public"]
    if not public:
        return None
    names = " and ".join(dict.fromkeys(r["operator"] for r in public["reductions"]))
    return el(
        "div",
        el("h3", "The exchanges, and the token that becomes public"),
        el("p", "No complete logits are put together. Each node looks at the logits that it owns;"
           f" {names} of all nodes are then found by {many(len(public['reductions']), 'exchange')}."
           " All nodes learn what they find, and with it the token that is chosen: it goes back"
           " into the next step as a public id."),
        id="exchanges",
    )


def _violations(run: Run) -> Markup | None:
    """What the audit found wrong, in full."""
    items = []
    for start in [*run.starts.values(), *run.failed]:
        for tokens, certificate in start.certificates.items():
            for v in certificate["verdict"]["violations"]:
                path = f"path: {' -> '.join(v['path'])}" if v["path"] else ""
                text = "\n".join(filter(None, (v["line"], path, v["holds"])))
                name = el("strong", f"{start.name}, {tokens} token(s): {v['code']}. ")
                items.append(el("li", name, v["text"], el("pre", text) if text else None))
    if not items:
        return None
    return el(
        "div", el("h3", "\u2717 What the audit found wrong"), el("ul", items), class_="failure"
    )
