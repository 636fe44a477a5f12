"""The table of `jobs.py list`: one line for each run, fitted to the terminal."""

import fnmatch
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from train_anywhere.errors import SubmitError
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.slurm.status.run_status import FAILED, Report, differing_keys
from train_anywhere.slurm.status.text_page import duration

COLORS = {"completed": "32", "running": "36", "starting": "36", **dict.fromkeys(FAILED, "31")}
"""ANSI colors of states; all others are yellow."""

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
GAP = "  "
MIN_DIFFERENCES = 12
"""Columns for what differs between runs; if fewer are left, it is on a line of its own."""


def has_colors() -> bool:
    """Return whether the output is a terminal that should get colors, see https://no-color.org."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def color_state(text: str, state: str, colors: bool) -> str:
    """Return the string in the color of a state."""
    return f"\x1b[{COLORS.get(state, '33')}m{text}\x1b[0m" if colors else text


def list_runs(reports: Sequence[Report], width: int | None, colors: bool = False) -> str:
    """Return the table.

    Args:
        reports: the runs, newest first.
        width: columns of the terminal; None: nothing is cut off.
        colors: whether states get colors.
    """
    keys = {
        name: differing_keys([r for r in reports if r.name == name]) for name in {r.name for r in reports}
    }
    columns = ["run", "name", "state", "progress", "best", "age", "took"]
    lines = [
        [
            report.id,
            report.name,
            report.state or report.written,
            _progress(report),
            _best(report),
            _seconds(report.started and time.time() - report.started),
            _seconds(report.took),
        ]
        for report in reports
    ]
    cells = [[one_line(cell) for cell in line] for line in lines]
    widths = [max(len(cell) for cell in column) for column in zip(columns, *cells, strict=True)]
    while width and sum(widths) + len(GAP) * (len(widths) - 1) > width and len(columns) > 3:
        gone = len(columns) - 1  # a narrow terminal shows no duration, then no age
        columns, widths, cells = columns[:gone], widths[:gone], [line[:gone] for line in cells]
    left = None if width is None else width - sum(widths) - len(GAP) * len(widths)
    header = [name.ljust(n) for name, n in zip(columns, widths, strict=True)]
    shown = [GAP.join([*header, *(["differs"] if left is None or left >= MIN_DIFFERENCES else [])])]
    for report, line in zip(reports, cells, strict=True):
        differs = " ".join(
            f"{key.rpartition('.')[2]}={report.overrides[key]}"
            for key in keys[report.name]
            if key in report.overrides
        )
        padded = [cell.ljust(n) for cell, n in zip(line, widths, strict=True)]
        padded[2] = color_state(padded[2], report.state or report.written, colors)
        differs = one_line(differs)
        if left is None or len(differs) <= left:
            shown.append(GAP.join([*padded, differs]).rstrip())
        elif left >= MIN_DIFFERENCES:
            shown.append(GAP.join([*padded, differs[: left - 1] + "…"]))
        else:
            shown += [GAP.join(padded).rstrip(), f"    {differs}"]
    return "\n".join(line.rstrip() for line in shown)


def terminal_width() -> int | None:
    """Return the columns of the terminal; None if the output is not one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def select(
    reports: Sequence[Report], name: str | None, states: str | None, since: str | None
) -> list[Report]:
    """Return the runs that pass all filters.

    Args:
        reports: the runs.
        name: pattern for the name of a run, such as `digits*`.
        states: states separated by commas.
        since: see `parse_since`.
    """
    after = parse_since(since).timestamp() if since else None
    wanted = {state.strip() for state in states.split(",")} if states else None
    return [
        report
        for report in reports
        if (name is None or fnmatch.fnmatch(report.name, name))
        and (wanted is None or (report.state or report.written) in wanted)
        and (after is None or (report.started or 0.0) >= after)
    ]


def parse_since(text: str) -> datetime:
    """Return the moment that `2h`, `3d`, `2026-11-26` or `2026-11-26T08:00` names.

    Raises:
        SubmitError: it is none of these.
    """
    if match := re.fullmatch(r"(\d{1,4})([mhdw])", text):
        return datetime.now().astimezone() - timedelta(**{UNITS[match[2]]: int(match[1])})
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise SubmitError(
            f"{text} is not a time: use 30m, 2h, 3d, 1w or a date such as 2026-11-26."
        ) from None


def _progress(report: Report) -> str:
    p = report.progress
    if p.step is None:
        return "-"
    return f"{p.step}/{p.steps}" if p.steps else str(p.step)


def _best(report: Report) -> str:
    return "-" if report.best is None else f"{report.best[0]} {report.best[1]:.4g}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else duration(max(0.0, value))
