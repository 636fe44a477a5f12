"""metrics.csv: one row per log point, and one curve however often the run was stopped and resumed."""

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import TypeVar

from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import read_text, set_aside, write_atomic
from train_anywhere.files.ordinary import open_file
from train_anywhere.files.removal import say_once

T = TypeVar("T")

FIRST = ("step", "epoch", "lr")
"""Columns that every file begins with; the metrics follow."""


def renamed(metrics: Mapping[str, T], says: bool = True) -> dict[str, T]:
    """Return the metrics of a user's module with `metric/` before the names in `FIRST`, which belong to this project.

    Args:
        says: whether to print one line for each such name.
    """
    for name in [name for name in FIRST if name in metrics and says]:
        say_once(
            f"the metric '{name}' is written as 'metric/{name}': metrics.csv has a column '{name}' of its own."
        )
    return {f"metric/{name}" if name in FIRST else name: value for name, value in metrics.items()}


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
        self._whole: list[str] | None = None  # all rows, if the disk has not taken the file as a whole
        lines = _log(path) if os.path.lexists(path) else []
        if lines is None:
            try:
                kept = set_aside(path, "damaged")
            except OSError as error:
                why = error.strerror or error
                raise CheckpointError(
                    f"{path} is not a list of metrics and can't be renamed ({why}); move it away."
                ) from error
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

        Rows that a full disk refuses are written with a later one, and a line says so.
        """
        values = {**{k: f"{v:.6g}" for k, v in metrics.items()}, "step": str(step), "epoch": str(epoch)}
        new = [name for name in values if name not in self.columns]
        if new and not self._waiting:  # else a part of a row is on the disk
            self.columns += new
            with self._disk():
                self._rewrite(self._rows())
        row = _line(values.get(column, "") for column in self.columns)
        with self._disk():
            if self._whole is not None:
                self._rewrite([*self._whole, row])
                return
            self._waiting += row
            with open_file(self.path, "ab") as file:
                written = file.write(self._waiting.encode())
                self._waiting = self._waiting.encode()[written:].decode()

    def resume(self, step: int) -> None:
        """Drop the rows after `step`, and a last row that a killed process left half-written.

        A file with other rows that have no step is kept under another name, and a line says so.
        """
        rows = self._rows()
        steps = [self._step(row) for row in rows]
        kept = [row for row, at in zip(rows, steps, strict=True) if at is not None and at <= step]
        odd = sum(at is None and row.endswith("\n") for row, at in zip(rows, steps, strict=True))
        from_scratch = step == 0 and rows
        with self._disk():
            if (from_scratch or odd) and os.path.lexists(self.path):
                whole = set_aside(self.path, "before" if from_scratch else "damaged")  # the old curve is kept
            if odd and not from_scratch:
                say_once(
                    f"{self.path} has {odd} rows without a step or with missing cells: they are kept in {whole}."
                )
            if from_scratch or kept != rows:
                self._rewrite(kept)

    def held(self, since: int = 0) -> set[tuple[str, int]]:
        """Name and step of each value, from step `since` on; before `resume` these are what earlier attempts have logged."""
        rows = ((self._step(row), _cells(row)) for row in self._rows())
        names = [(at, name) for at, name in enumerate(self.columns) if name not in ("step", "epoch")]
        return {
            (name, at_step)
            for at_step, cells in rows
            if at_step is not None and at_step >= since
            for at, name in names
            if cells[at]
        }

    def _rows(self) -> list[str]:
        return _lines(self.path)[1:] if self._whole is None else self._whole

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Within, a disk that refuses is a line: the rows are kept in memory until it takes them."""
        try:
            yield
        except OSError as error:
            say_once(
                f"{self.path} can't be written ({error.strerror or error}); training continues, and its rows are written once it can be."
            )

    def _rewrite(self, rows: Iterable[str]) -> None:
        """Write the file with today's columns; rows of fewer end in empty ones.

        A disk that refuses is tried again with the next row.
        """
        self._whole = [*rows]
        with self._disk():
            self._write(self._whole)
            self._whole = None

    def _write(self, rows: Iterable[str]) -> None:
        width = len(self.columns)
        whole = (_cells(row) for row in rows if row.endswith("\n"))
        padded = (_line([*cells, *[""] * (width - len(cells))]) for cells in whole)
        write_atomic(self.path, "".join([_line(self.columns), *padded]))

    def _step(self, line: str) -> int | None:
        """Return the step of a row, which may be written 1e+06; None if the row is not complete or does not have a step."""
        cells = _cells(line)
        if line.endswith("\n") and len(cells) == len(self.columns):
            with suppress(ValueError):
                return int(step) if (step := float(cells[0])).is_integer() and step >= 0 else None
        return None


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
        return read_text(path, largest=inf).splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _cells(line: str) -> list[str]:
    return next(csv.reader([line]), [])


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([" ".join(cell.splitlines()) for cell in cells])
    return text.getvalue()
