"""Rows of words as a table of text."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], align: str) -> str:
    """The rows as lines, each column as wide as its widest cell.

    Args:
      rows: the cells of each row; every row has as many.
      align: "<" or ">" of each column, the last one also that of the columns after it.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    align = align.ljust(len(widths), align[-1])
    form = [f"{{:{a}{width}}}" for a, width in zip(align, widths, strict=True)]
    return "\n".join("  ".join(form).format(*row).rstrip() for row in rows)
