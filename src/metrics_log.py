"""metrics.csv: one row per log point, one curve however often the run was stopped and resumed."""

import csv
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from src.rundir import write_atomic

COLUMNS = (
    "step",
    "epoch",
    "lr",
    "train/loss",
    "train/acc",
    "val/loss",
    "val/acc",
    "test/loss",
    "test/acc",
)


class CsvLog:
    """Appends rows to a CSV file; what a row does not know stays empty. Only rank 0 may have one.

    Args:
        path: the file; made with its header when there is none, continued otherwise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting = ""  # rows that the disk has not taken yet
        if not path.exists():
            path.write_text(",".join(COLUMNS) + "\n")

    def write(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Append a row: optimizer steps done, number of the epoch (from 1), metrics named as in `COLUMNS`.

        What a full disk does not take is written with a later row.
        """
        values = {"step": str(step), "epoch": str(epoch), **{k: f"{v:.6g}" for k, v in metrics.items()}}
        self._waiting += ",".join(values.get(column, "") for column in COLUMNS) + "\n"
        with suppress(OSError), open(self.path, "ab", buffering=0) as file:
            written = file.write(self._waiting.encode())
            self._waiting = self._waiting[written:]

    def resume(self, step: int) -> None:
        """Drop the rows after `step`, and what a killed process left half-written."""
        with open(
            self.path, newline="", errors="replace"
        ) as file:  # a row with odd bytes is dropped like half of one
            lines = [line for line in file if "\0" not in line and "\ufffd" not in line]
        rows = [row for row in csv.reader(lines) if len(row) == len(COLUMNS)]
        kept = [row for row in rows if row[0].isdigit() and int(row[0]) <= step]
        write_atomic(self.path, "".join(",".join(row) + "\n" for row in [list(COLUMNS), *kept]))
