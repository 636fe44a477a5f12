"""metrics.csv: one row per log point, and one curve however often the run was stopped and resumed."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from src.files.atomic import set_aside, write_atomic
from src.files.removal import say_once
from src.tasks import METRIC_NAMES

COLUMNS = ("step", "epoch", "lr", *METRIC_NAMES)

HEADER = ",".join(COLUMNS) + "\n"
"""First line of the file."""


class CsvLog:
    """Appends rows to a CSV file; columns without a value stay empty. Only rank 0 may have one.

    Args:
        path: the file; created with its header if missing, continued otherwise. Anything else that stands there is
            kept under another name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting = ""  # rows that the disk has not taken yet
        if os.path.lexists(path) and not _is_log(path):
            kept = set_aside(path, "damaged")
            say_once(
                f"{path} is not a list of this project's metrics: it is kept as {kept}, and a new one begins."
            )
        if not path.exists() or path.stat().st_size < len(HEADER):
            path.write_text(HEADER)

    def write(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Append a row: optimizer steps done, number of the epoch (from 1), metrics by the names in `COLUMNS`.

        Rows that a full disk refuses are written with a later one.
        """
        values = {"step": str(step), "epoch": str(epoch), **{k: f"{v:.6g}" for k, v in metrics.items()}}
        self._waiting += ",".join(values.get(column, "") for column in COLUMNS) + "\n"
        with suppress(OSError), open(self.path, "ab", buffering=0) as file:
            written = file.write(self._waiting.encode())
            self._waiting = self._waiting[written:]

    def resume(self, step: int) -> None:
        """Drop the rows after `step`, and a row that a killed process left half-written."""
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        if step == 0 and len(lines) > 1:
            set_aside(self.path, "before")  # from scratch: the old curve is kept
        kept = [line for line in lines[1:] if _is_row(line) and int(line.split(",")[0]) <= step]
        write_atomic(self.path, "".join([HEADER, *kept]))


def _is_log(path: Path) -> bool:
    """Whether the file is a log, or the beginning of one whose process was killed."""
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() and not path.is_symlink() else "?"
    except (OSError, ValueError):
        return False
    return text.startswith(HEADER) or HEADER.startswith(text)


def _is_row(line: str) -> bool:
    """Whether the row is complete: a process may have been killed while writing it."""
    first = line.split(",")[0]
    whole = line.endswith("\n") and line.count(",") == len(COLUMNS) - 1
    return whole and first.isascii() and first.isdigit()
