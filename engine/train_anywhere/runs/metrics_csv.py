"""Write metrics.csv: one row per log point, and one curve also of a resumed run."""

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import TypeVar

from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import open_file, read_text, set_aside, write_atomic
from train_anywhere.files.removal import print_once
from train_anywhere.files.terminal.table import format_csv

T = TypeVar("T")

FIRST_COLUMNS = ("step", "epoch", "lr")
"""The first columns of every file; the metrics follow."""


def prefix_reserved_names(metrics: Mapping[str, T], report: bool = True) -> dict[str, T]:
    """Return a module's metrics with `metric/` before reserved names, and report them."""
    for name in [name for name in FIRST_COLUMNS if name in metrics and report]:
        print_once(
            f"the metric '{name}' is written as 'metric/{name}': '{name}' is another column of metrics.csv."
        )
    return {f"metric/{name}" if name in FIRST_COLUMNS else name: value for name, value in metrics.items()}


class CsvLog:
    """A CSV file to which rows are appended. Only rank 0 may have one.

    Args:
        path: the file; created with its header if missing, else continued. A file with other content is kept under another name.
        metrics: names of the expected metrics; a column for any other metric is added when it is first written.
        first: the first columns of the file.
    """

    def __init__(self, path: Path, metrics: Iterable[str] = (), first: Sequence[str] = FIRST_COLUMNS) -> None:
        self.path = path
        self._next: dict[str, float] = {}
        self._waiting = ""  # rows that could not be written yet
        self._whole: list[str] | None = None  # all rows, if the whole file could not be written yet
        lines = _read_log_lines(path, ",".join(first)) if os.path.lexists(path) else []
        if lines is None:
            try:
                kept = set_aside(path, "damaged")
            except OSError as error:
                why = f"{path} is not a metrics file and can't be renamed ({error.strerror or error}); move it away."
                raise CheckpointError(why) from error
            print_once(
                f"{path} is not a metrics file of this project: it is kept as {kept}, and a new file is started."
            )
        if lines and not lines[-1].endswith("\n"):  # a process was killed while it wrote a row
            lines.pop()
            with suppress(OSError):
                write_atomic(path, "".join(lines))
        header, *rows = lines or [""]
        written = _parse_line(header) if header.endswith("\n") else []
        self.columns = list(dict.fromkeys([*first, *written, *metrics]))
        if self.columns != written:
            self._rewrite(rows)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Write these metrics with the next row."""
        self._next |= metrics

    def write(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Append a row: optimizer steps done, number of the epoch (from 1), metrics by name."""
        numbers, self._next = {**self._next, **metrics}, {}
        self.append({**{k: f"{v:.6g}" for k, v in numbers.items()}, "step": str(step), "epoch": str(epoch)})

    def append(self, values: Mapping[str, str]) -> None:
        """Append a row. One that can't be written, as on a full disk, is reported and written with a later row."""
        new = [name for name in values if name not in self.columns]
        if new and not self._waiting:  # waiting rows: part of a row may be in the file already
            self.columns += new
            with self._report_disk_errors():
                self._rewrite(self._rows())
        row = _format_line(values.get(column, "") for column in self.columns)
        with self._report_disk_errors():
            if self._whole is not None:
                self._rewrite([*self._whole, row])
                return
            self._waiting += row
            with open_file(self.path, "ab") as file:
                written = file.write(self._waiting.encode())
                self._waiting = self._waiting.encode()[written:].decode()

    def resume(self, step: int) -> None:
        """Drop the rows after `step`, and a last row that a killed process left incomplete.

        A file with other rows without a step is also kept under another name, and reported.
        """
        rows = [(row, self._step(row)) for row in self._rows()]
        kept = [row for row, at in rows if at is not None and at <= step]
        odd = sum(at is None and row.endswith("\n") for row, at in rows)
        from_scratch = step == 0 and rows
        with self._report_disk_errors():
            if (from_scratch or odd) and os.path.lexists(self.path):
                whole = set_aside(self.path, "before" if from_scratch else "damaged")
            if odd and not from_scratch:
                print_once(
                    f"{self.path} has {odd} rows without a step or with missing cells: they are kept in {whole}."
                )
            if from_scratch or len(kept) < len(rows):
                self._rewrite(kept)

    def _rows(self) -> list[str]:
        return _read_lines(self.path)[1:] if self._whole is None else self._whole

    @contextmanager
    def _report_disk_errors(self) -> Iterator[None]:
        """Report an OSError within the block. The rows stay in memory until they can be written."""
        try:
            yield
        except OSError as error:
            print_once(
                f"{self.path} can't be written ({error.strerror or error}); training continues, and rows are written as soon as possible."
            )

    def _rewrite(self, rows: Iterable[str]) -> None:
        """Write the whole file with the current columns. If that fails, the next row tries again."""
        self._whole, width = [*rows], len(self.columns)
        complete = (_parse_line(row) for row in self._whole if row.endswith("\n"))
        padded = (_format_line([*cells, *[""] * (width - len(cells))]) for cells in complete)
        with self._report_disk_errors():
            write_atomic(self.path, "".join([_format_line(self.columns), *padded]))
            self._whole = None

    def _step(self, line: str) -> int | None:
        """Return the step of a row, which may be written 1e+06, or None if it has none."""
        cells = _parse_line(line)
        if line.endswith("\n") and len(cells) == len(self.columns):
            with suppress(ValueError):
                return int(step) if (step := float(cells[0])).is_integer() and step >= 0 else None
        return None


def _read_log_lines(path: Path, start: str) -> list[str] | None:
    """Return the lines of a metrics file, maybe incomplete. None if it is another file."""
    try:
        lines = _read_lines(path) if path.is_file() and not path.is_symlink() else ["?"]
    except (OSError, ValueError):
        return None
    return lines if not lines or lines[0].startswith(start) or start.startswith(lines[0]) else None


def _read_lines(path: Path) -> list[str]:
    """Return the lines of a file with their line ends, or [] if it does not exist."""
    try:
        return read_text(path, largest=inf).splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _parse_line(line: str) -> list[str]:
    return next(csv.reader([line]), [])


def _format_line(cells: Iterable[str]) -> str:
    return format_csv([[" ".join(cell.splitlines()) for cell in cells]])
