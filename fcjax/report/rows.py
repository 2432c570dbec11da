"""The rows of the ledger for a reader: by layer, with layers that do the same put together."""

import dataclasses

from fcjax.report.folder import Run
from fcjax.sharded.operators import OPERATORS


@dataclasses.dataclass(frozen=True)
class Group:
    """Layers, one after the other, that do the same; or what is in no layer.

    Attributes:
      layers: their numbers; none for entry, embedding, head and choice.
      rows: ledger rows of the first of them.
      all_rows: of every one.
    """

    layers: tuple[int, ...]
    rows: tuple[dict, ...]
    all_rows: tuple[tuple[dict, ...], ...]

    @property
    def title(self) -> str:
        """Which layers."""
        if not self.layers:
            return ""
        first, last = self.layers[0], self.layers[-1]
        if first == last:
            return f"Layer {first}"
        return f"Layers {first} to {last}: {len(self.layers)} times the same, shown once"


def rows_of(run: Run) -> tuple[list[dict], bool]:
    """Ledger rows of the first decode step, or what is planned if none was recorded.

    Returns:
      The rows, and whether they were recorded.
    """
    shown = run.shown
    if shown is None:
        return [_planned(run, b) for b in run.job["boundaries"]], False
    rows = list(shown["ledger"])
    if shown["public"]:
        exchanges = shown["public"]["reductions"]
        rows.append({"boundary": "choose", "reductions": exchanges, "owners": {}})
    return rows, True


def groups(rows: list[dict], owners: bool = True) -> list[Group]:
    """The rows by layer, with layers that do the same put together.

    Args:
      rows: of a ledger.
      owners: whether layers are the same only if the owners' entries are, too.
    """
    blocks: list[tuple[int | None, list[dict]]] = []
    for row in rows:
        layer = layer_of(row["boundary"])
        if blocks and blocks[-1][0] == layer:
            blocks[-1][1].append(row)
        else:
            blocks.append((layer, [row]))
    found: list[Group] = []
    for layer, block in blocks:
        same = found and found[-1].layers and layer is not None
        if same and _shape(found[-1].rows, owners) == _shape(block, owners):
            last = found.pop()
            found.append(Group((*last.layers, layer), last.rows, (*last.all_rows, tuple(block))))
        else:
            layers = () if layer is None else (layer,)
            found.append(Group(layers, tuple(block), (tuple(block),)))
    return found


def layer_of(boundary: str) -> int | None:
    """The layer that a boundary belongs to."""
    scope = boundary.partition("/")[0]
    return int(scope.removeprefix("layer_")) if scope.startswith("layer_") else None


def what(boundary: str) -> str:
    """The operator before a boundary, without its layer."""
    return boundary.rpartition("/")[2]


def coordinates(dim: str, start: int, stop: int) -> str:
    """A run of coordinates for a reader: "D 0..767"."""
    if start >= stop:
        return "none"
    return f"{dim} {start}" if stop == start + 1 else f"{dim} {start}..{stop - 1}"


def owner_key(entry: dict):
    runs = tuple((s["node"], *s["coordinates"]) for s in entry["shards"])
    return entry["dim"], entry["measured"], runs


def _planned(run: Run, boundary: dict) -> dict:
    """A row as the plan has it: nothing was recorded."""
    plan = run.job["plan"]

    def owners(state):
        split = plan["splits"][plan["state"][state]["split"]]
        shards = [{"node": q, "coordinates": x} for q, x in enumerate(split["owned"])]
        entry = {"dim": plan["state"][state]["split"], "size": split["size"], "measured": None}
        return entry | {"disjoint": None, "covering": None, "as_planned": None, "shards": shards}

    return {
        "boundary": boundary["scope"],
        "reductions": [transfer(c, boundary["scope"]) for c in boundary["collectives"]],
        "owners": {state: owners(state) for state in boundary["state"]},
    }


def transfer(planned: dict, scope: str) -> dict:
    exchange = planned["exchange"]
    name = planned["weight"] or (exchange["name"] if exchange else f"{scope} statistic")
    operator = OPERATORS.get(what(scope))
    received = None if planned["axis"] is None else {"dim": operator.owned if operator else ""}
    nothing = {"bytes": None, "elements": None}
    return {
        "operator": name, "kind": planned["kind"], "instruction": "", "dtype": "",
        "operand": nothing, "result": nothing, "received": received, "read_by": [],
    }


def _shape(rows, owners: bool) -> tuple:
    """What must be the same for two layers to do the same."""
    return tuple(
        (
            what(row["boundary"]),
            tuple(
                (r["kind"], r["dtype"], r["operand"]["bytes"], r["result"]["bytes"],
                 str(r["received"]))
                for r in row["reductions"]
            ),
            tuple(
                (state, owner_key(x), x["disjoint"], x["covering"], x["as_planned"])
                for state, x in (row["owners"].items() if owners else ())
            ),
        )
        for row in rows
    )
