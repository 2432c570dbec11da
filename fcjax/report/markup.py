"""Building HTML and SVG so that whatever comes out of a file is escaped."""

import html


class Markup(str):
    """Text that is markup already; everything else is escaped where it is put in."""


VOID = ("meta", "br", "wbr", "hr")


def el(name: str, /, *children, **attributes) -> Markup:
    """One element.

    Args:
      name: of the tag.
      *children: markup, text, numbers, lists of them; None is left out.
      **attributes: `class_` is `class`, `aria_label` is `aria-label`; None is left out, True has
        no value.
    """
    opened = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        # SVG's viewBox and the like keep their capitals.
        key = key.rstrip("_").replace("_", "-")
        opened.append(key if value is True else f'{key}="{html.escape(str(value))}"')
    start = f"<{' '.join(opened)}>"
    return Markup(start if name in VOID else f"{start}{join(*children)}</{name}>")


def join(*children) -> Markup:
    """Children one after the other."""
    parts = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, list | tuple):
            parts.append(join(*child))
        else:
            parts.append(child if isinstance(child, Markup) else html.escape(str(child)))
    return Markup("".join(parts))


def table(
    columns, rows, caption: str | None = None, numeric=(), class_: str | None = None, row_heads=True
) -> Markup:
    """A table with headers; on a narrow screen each cell says its column itself.

    Args:
      columns: titles.
      rows: lists of cells, or markup of a whole row.
      caption: what the table lists.
      numeric: numbers of the columns that hold figures.
      class_: of the table.
      row_heads: whether the first cell of a row is its header.
    """

    def cell(i, content):
        kind = "num" if i in numeric else None
        if i == 0 and row_heads:
            return el("th", content, scope="row", class_=kind)
        return el("td", content, class_=kind, data_label=columns[i])

    head = el("tr", [
        el("th", title, scope="col", class_="num" if i in numeric else None)
        for i, title in enumerate(columns)
    ])
    body = [
        row if isinstance(row, Markup) else el("tr", [cell(i, x) for i, x in enumerate(row)])
        for row in rows
    ]
    return el(
        "table",
        el("caption", caption) if caption else None,
        el("thead", head),
        el("tbody", body),
        class_=" ".join(filter(None, ("data", class_))),
    )


def fold(summary, *children, open_: bool = False) -> Markup:
    """Something that is shown when it is asked for."""
    return el("details", el("summary", summary), *children, open=open_)


def definitions(pairs) -> Markup:
    """Names and what they are."""
    return el("dl", [el("div", el("dt", name), el("dd", value)) for name, value in pairs])


def mark(passed: bool | None) -> Markup:
    """A sign and a word: colour is never all that tells."""
    word, sign, kind = {
        True: ("passed", "\u2713", "ok"),
        False: ("failed", "\u2717", "bad"),
        None: ("not known", "\u2013", "open"),
    }[passed]
    return el("span", sign, el("span", f" {word}", class_="word"), class_=f"mark {kind}")


def code(text) -> Markup:
    """A hash or a name, which may break anywhere."""
    return el("code", text)


def size(count: float) -> str:
    """Bytes for a reader; small ones exactly."""
    if count < 10_000:
        return f"{count:,.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024 or unit == "GiB":
            return f"{count:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """Seconds for a reader."""
    if seconds is None:
        return "not measured"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def figure(number) -> str:
    """A parity figure, as the programs print it."""
    return "not compared" if number is None else f"{float(number):.1e}"


def many(count: int, noun: str) -> str:
    """A count with its noun."""
    plural = f"{noun}es" if noun.endswith("ss") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
