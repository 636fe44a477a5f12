"""metrics.csv: one row per log point, and one curve however often the run was stopped and resumed."""

import csv
import io
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from src.files.atomic import set_aside, write_atomic
from src.files.removal import say_once

FIRST = ("step", "epoch", "lr")
"""Columns that every file begins with; the metrics follow."""


class CsvLog:
    """Appends rows to a CSV file; columns without a value stay empty. Only rank 0 may have one.

    Args:
        path: the file; created with its header if missing, continued otherwise. Anything else that stands there is
            kept under another name.
        metrics: names that are known beforehand; a column for another one is added when it is first written.
    """

    def __init__(self, path: Path, metrics: Iterable[str] = ()) -> None:
        self.path = path
        self._waiting = ""  # rows that the disk has not taken yet
        lines = _log(path) if os.path.lexists(path) else []
        if lines is None:
            kept = set_aside(path, "damaged")
            say_once(
                f"{path} is not a list of this project's metrics: it is kept as {kept}, and a new one begins."
            )
        header, *rows = lines or [""]
        written = _cells(header) if header.endswith("\n") else []
        self.columns = list(dict.fromkeys([*FIRST, *written, *metrics]))
        if self.columns != written:
            self._rewrite(rows)

    def write(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Append a row: optimizer steps done, number of the epoch (from 1), metrics by name.

        Rows that a full disk refuses are written with a later one.
        """
        values = {"step": str(step), "epoch": str(epoch), **{k: f"{v:.6g}" for k, v in metrics.items()}}
        new = [name for name in values if name not in self.columns]
        with suppress(OSError):
            if new and not self._waiting:  # else a part of a row is on the disk
                self.columns += new
                self._rewrite(_lines(self.path)[1:])
        self._waiting += _line(values.get(column, "") for column in self.columns)
        with suppress(OSError), open(self.path, "ab", buffering=0) as file:
            written = file.write(self._waiting.encode())
            self._waiting = self._waiting.encode()[written:].decode()

    def resume(self, step: int) -> None:
        """Drop the rows after `step`, and a row that a killed process left half-written."""
        rows = _lines(self.path)[1:]
        kept = [row for row in rows if self._is_row(row) and int(row.split(",")[0]) <= step]
        from_scratch = step == 0 and rows
        if from_scratch:
            set_aside(self.path, "before")  # the old curve is kept
        if from_scratch or kept != rows:
            self._rewrite(kept)

    def held(self, since: int = 0) -> set[tuple[str, int]]:
        """Name and step of each value, from step `since` on; before `resume` these are what earlier attempts have logged."""
        rows = (_cells(row) for row in _lines(self.path)[1:] if self._is_row(row))
        names = [(at, name) for at, name in enumerate(self.columns) if name not in ("step", "epoch")]
        return {
            (name, int(cells[0]))
            for cells in rows
            if int(cells[0]) >= since
            for at, name in names
            if cells[at]
        }

    def _rewrite(self, rows: Iterable[str]) -> None:
        """The file with today's columns; rows of fewer end in empty ones. Raises OSError."""
        width = len(self.columns)
        whole = (_cells(row) for row in rows if row.endswith("\n"))
        padded = (_line([*cells, *[""] * (width - len(cells))]) for cells in whole)
        write_atomic(self.path, "".join([_line(self.columns), *padded]))

    def _is_row(self, line: str) -> bool:
        """Whether the row is complete: a process may have been killed while writing it."""
        first = line.split(",")[0]
        whole = line.endswith("\n") and len(_cells(line)) == len(self.columns)
        return whole and first.isascii() and first.isdigit()


def _log(path: Path) -> list[str] | None:
    """The lines of a log, or of the beginning of one whose process was killed; None: the file is neither."""
    try:
        lines = _lines(path) if path.is_file() and not path.is_symlink() else ["?"]
    except (OSError, ValueError):
        return None
    start = ",".join(FIRST)
    return lines if not lines or lines[0].startswith(start) or start.startswith(lines[0]) else None


def _lines(path: Path) -> list[str]:
    """The lines of the file with their ends; none if it does not exist."""
    try:
        return path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _cells(line: str) -> list[str]:
    return next(csv.reader([line]), [])


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([" ".join(cell.splitlines()) for cell in cells])
    return text.getvalue()
