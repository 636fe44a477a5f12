"""Tables of columns, fitted to the width of a terminal, in which no value is ever cut; CSV."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from train_anywhere.files.terminal.fit import fit
from train_anywhere.files.terminal.printable import one_line

GAP = "  "
"""Separator of columns."""

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table.

    Attributes:
        value: returns the text of a row.
        drop: a narrow terminal leaves out the column with the highest number first; None: it is always shown.
        paint: adds colors to the padded text of a row.
    """

    title: str
    value: Callable[[Row], str]
    drop: int | None = None
    paint: Callable[[str, Row], str] = lambda text, row: text


def format_table(
    columns: Sequence[Column[Any]],
    rows: Sequence[Any],
    width: int | None = None,
    tail: Column[Any] | None = None,
    least: int = 0,
) -> str:
    """Return a table: a line of titles, and a line for each row.

    Args:
        columns: all columns but the last, `tail`.
        rows: the values from which the columns make their text.
        width: characters in a line of the terminal; None: no limit.
        tail: a last column, whose text moves below its row if it does not fit.
        least: width that columns are dropped for, so that the tail fits next to its row.
    """
    table = [[c.title, *(one_line(c.value(row)) for row in rows)] for c in columns]
    widths = [max(map(len, column)) for column in table]
    tails = [one_line(tail.value(row)) for row in rows] if tail else [""] * len(rows)
    kept = [at for at, column in enumerate(columns) if column.drop is None]
    least, limit = min(least, max(map(len, tails), default=0)), math.inf if width is None else width
    room = least + len(GAP) if least and _width(widths, kept) + len(GAP) + least <= limit else 0
    shown = [*range(len(columns))]
    for at in sorted({*shown} - {*kept}, key=lambda at: -(columns[at].drop or 0)):
        if _width(widths, shown) + room > limit:
            shown.remove(at)
    left = max(0, limit - _width(widths, shown) - len(GAP))
    lines = []
    for number, text in enumerate([tail.title if tail and len(tail.title) <= left else "", *tails]):
        cells = [table[at][number].ljust(widths[at]) for at in shown]
        if number:
            cells = [columns[at].paint(cell, rows[number - 1]) for at, cell in zip(shown, cells, strict=True)]
        lines.append(GAP.join([*cells, text] if len(text) <= left else cells).rstrip())
        if len(text) > left:
            lines.append(fit(f"    {text}", width))
    return "\n".join(lines)


def format_csv(rows: Iterable[Iterable[object]]) -> str:
    """Return the rows as lines of a CSV file."""
    csv.writer(text := io.StringIO(), lineterminator="\n").writerows(rows)
    return text.getvalue()


def _width(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[at] for at in shown) + len(GAP) * (len(shown) - 1)
