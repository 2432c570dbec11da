"""The interval drawn operator by operator: one lane a node, and what crosses between them."""

from fcjax.report.folder import Run
from fcjax.report.markup import Markup, el, many, size
from fcjax.report.rows import coordinates, groups, owner_key, rows_of, transfer, what
from fcjax.sharded.operators import OPERATORS


def draw(run: Run) -> Markup:
    """The whole drawing."""
    rows, _ = rows_of(run)
    nodes = run.job["nodes"]
    head = el("tr", el("th", "operator", scope="col"), [
        el("th", f"node {q}", scope="col") for q in range(nodes)
    ])
    bodies = []
    for group in groups(rows):
        title = group.title
        lanes = [el("td", class_="lane") for _ in range(nodes)]
        top = el("tr", el("th", title, scope="rowgroup"), lanes, class_="group")
        inside = [_boundary(row, nodes) for row in group.rows]
        bodies.append(el("tbody", top if title else None, inside))
    bodies.append(el("tbody", el("tr", el("th", "The interval ends here", colspan=nodes + 1)),
                     class_="end"))
    if run.job["outside_the_claim"]:
        bodies.append(_outside(run, nodes))
    return el(
        "table",
        el("caption", f"Operators from top to bottom, a lane for each of {many(nodes, 'node')}."),
        el("thead", head),
        bodies,
        # Many lanes would be too narrow for words: then they stand in rows, without wires.
        class_="interval" + (" rows" if nodes > 6 else " dense" if nodes > 3 else ""),
        style=f"--n:{nodes}",
    )


def _boundary(row: dict, nodes: int) -> list[Markup]:
    """What an operator does, what crosses, and who owns what after it."""
    name = what(row["boundary"])
    operator = OPERATORS.get(name)
    boxes = _boxes(row["owners"])
    cells = [[el("td", bus(r, nodes), colspan=nodes, class_="bus")] for r in row["reductions"]]
    if boxes:
        cells.append([
            el("td", [_box(*box, q) for box in boxes], class_="lane", data_node=f"node {q}")
            for q in range(nodes)
        ])
    cells = cells or [[el("td", colspan=nodes)]]
    head = el(
        "th",
        el("b", operator.title if operator else name),
        el("span", operator.does if operator else ""),
        scope="row",
        rowspan=len(cells),
    )
    return [
        el("tr", head if i == 0 else None, content, class_=None if i else "op")
        for i, content in enumerate(cells)
    ]


def _boxes(owners: dict) -> list[tuple[list[str], dict]]:
    """State tensors with the same owners in one box."""
    found: list[tuple[list[str], dict]] = []
    for state, entry in owners.items():
        key = owner_key(entry)
        for names, other in found:
            if owner_key(other) == key:
                names.append(state)
                break
        else:
            found.append(([state], entry))
    return found


def _box(names: list[str], entry: dict, node: int) -> Markup:
    """What one node owns."""
    mine = [s for s in entry["shards"] if s["node"] == node]
    runs = [s["coordinates"] for s in mine if s["coordinates"][0] < s["coordinates"][1]]
    kind = {True: "measured", False: "known", None: "planned"}[entry["measured"]]
    wrong = not all(entry[x] is not False for x in ("disjoint", "covering", "as_planned"))
    total = entry["size"]
    map_ = el(
        "svg",
        [
            el("rect", x=_percent(a, total), width=_percent(b - a, total), height=4)
            for a, b in runs
        ],
        width="100%", height=4, aria_hidden="true", class_="map",
    )
    words = ", ".join(coordinates(entry["dim"], a, b) for a, b in runs)
    return el(
        "div",
        el("small", ", ".join(names).replace("_", " ")),
        el("b", words or "owns none of it"),
        map_,
        el("span", "\u2717 not as planned") if wrong else None,
        class_=f"box {kind}" + ("" if runs else " none") + (" bad" if wrong else ""),
    )


def bus(reduction: dict, nodes: int, outside: bool = False) -> Markup:
    """A transfer: every lane goes in, and every lane comes out."""
    kind, dim = reduction["kind"], (reduction["received"] or {}).get("dim")
    sent, got = reduction["operand"]["bytes"], reduction["result"]["bytes"]
    if kind == "reduce-scatter":
        words, style = f"reduce-scatter over {dim}", "scatter"
    elif kind == "all-gather":
        words, style = "all-gather", "gather"
    elif reduction["operator"].endswith("statistic"):
        words, style = "all-reduce: sum of squares", "statistic"
    else:
        words, style = f"all-reduce: {reduction['operator']}", "statistic"
    figures = None
    if sent is not None:
        figures = el("span", f"{size(sent)} in, {size(got)} out")
    lanes = [f"{(q + 0.5) / nodes * 100:.4g}%" for q in range(nodes)]
    lines = [el("line", x1=x, x2=x, y1=0, y2="100%") for x in lanes]
    arrows = [
        el("svg", el("path", d="M-4-7 0-1 4-7"), x=x, y="100%", overflow="visible")
        for x in (lanes if style != "statistic" else ())
    ]
    across = el("line", x1=lanes[0], x2=lanes[-1], y1="50%", y2="50%", class_="across")
    return el(
        "div",
        el("svg", lines, across, arrows, width="100%", height="100%", aria_hidden="true"),
        el("span", el("b", words), figures, class_="pill"),
        class_=f"wire {style}" + (" out" if outside else ""),
    )


def _outside(run: Run, nodes: int) -> Markup:
    """The all-gather after the interval, as something that the claim is not about."""
    shown = run.shown
    note = el("tr", el(
        "th", el("b", "Outside the claim"), el("span", "For the layers that were left unmodified, "
        "the program now restores the complete layout on every node."),
        scope="row", rowspan=2,
    ), el("td", bus(_gather(run), nodes, outside=True), colspan=nodes, class_="bus"))
    restored = (shown or {}).get("outside_the_claim") or {"restored": {}}
    sizes = sum(x["bytes"] for x in restored["restored"].values())
    cells = [
        el("td", el(
            "div", el("small", "residual, q, k, v"), el("b", "complete"),
            el("small", size(sizes)) if sizes else None, class_="box whole",
        ), class_="lane", data_node=f"node {q}")
        for q in range(nodes)
    ]
    return el("tbody", note, el("tr", cells), class_="outside")


def _gather(run: Run) -> dict:
    shown = run.shown
    if shown and shown["outside_the_claim"]:
        return shown["outside_the_claim"]["reduction"] | {"received": None}
    return transfer(run.job["outside_the_claim"], "compatibility all-gather")


def _percent(part: float, total: float) -> str:
    return f"{100 * part / total:.4g}%"


def legend(recorded: bool) -> Markup:
    """What the boxes mean."""
    if not recorded:
        return el("p", "No decode step was recorded: this is the plan.", class_="legend")
    return el(
        "p",
        el("i", class_="key measured"), " measured in the step, from the real buffers. ",
        el("i", class_="key known"),
        " known from the audited program: there is no array to look at. ",
        el("br"), "The bar in a box shows which part of the dimension the node owns. ",
        "In: what each node puts into a transfer; out: what each node receives.",
        class_="legend",
    )
