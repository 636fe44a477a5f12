"""The table of `jobs.py list`: one line for each run, fitted to the terminal."""

import fnmatch
import re
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import SubmitError
from train_anywhere.files.terminal.fit import fit
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.slurm.status.gather import STATES, Report, differing_keys
from train_anywhere.slurm.status.text_page import color_state, duration

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
GAP = "  "
BEST = 5
"""Number of columns up to the best value; those after it, age and duration, give way to what differs."""
MIN_DIFFERENCES = 12
"""Columns that what differs between runs needs at most; if fewer are left, it is on a line of its own."""


def list_runs(reports: Sequence[Report], width: int | None, colors: bool = False) -> str:
    """Return the table."""
    names = {report.name for report in reports}
    keys = {name: differing_keys([r for r in reports if r.name == name]) for name in names}
    metrics = {report.best[0] for report in reports if report.best}
    shared = next(iter(metrics)) if len(metrics) == 1 else ""
    columns = ["run", "name", "state", "progress", one_line(shared) or "best", "age", "took"]
    lines = [
        [
            report.id,
            report.name,
            report.state or report.written,
            _progress(report),
            _best(report, shared),
            _seconds(report.started and time.time() - report.started),
            _seconds(report.took),
        ]
        for report in reports
    ]
    cells = [[one_line(cell) for cell in line] for line in lines]
    widths = [max(len(cell) for cell in column) for column in zip(columns, *cells, strict=True)]
    differences = [
        one_line(
            GAP.join(f"{k.rpartition('.')[2]}={r.overrides[k]}" for k in keys[r.name] if k in r.overrides)
        )
        for r in reports
    ]
    least = min(MIN_DIFFERENCES, max(map(len, differences), default=0))
    room = least + len(GAP) if least and width and _width(widths[:BEST]) + len(GAP) + least <= width else 0
    while width and _width(widths) + room > width and len(columns) > 3:
        gone = len(columns) - 1  # a narrow terminal shows no duration, then no age
        columns, widths, cells = columns[:gone], widths[:gone], [line[:gone] for line in cells]
    left = None if width is None else width - sum(widths) - len(GAP) * len(widths)
    header = [name.ljust(n) for name, n in zip(columns, widths, strict=True)]
    shown = [GAP.join([*header, *(["differs"] if left is None or left >= least else [])])]
    for report, line, differs in zip(reports, cells, differences, strict=True):
        padded = [cell.ljust(n) for cell, n in zip(line, widths, strict=True)]
        padded[2] = color_state(padded[2], report.state or report.written, colors)
        if left is None or len(differs) <= max(left, 0):
            shown.append(GAP.join([*padded, differs]))
        else:
            shown += [GAP.join(padded), *fit(f"    {differs}", width).split("\n")]
    return "\n".join(line.rstrip() for line in shown)


def select(
    reports: Sequence[Report], name: str | None, states: str | None, since: str | None
) -> list[Report]:
    """Return the runs that pass all filters.

    Raises SubmitError: a state is not known, or a filter is empty.
    """
    after = None if since is None else parse_since(since).timestamp()
    wanted = None if states is None else {parse_state(state.strip()) for state in states.split(",")}
    if name is not None and not name.strip():
        raise SubmitError("--name is empty; use a pattern such as 'digits*', or leave it out.")
    return [
        report
        for report in reports
        if (name is None or fnmatch.fnmatch(report.name, name))
        and (wanted is None or (report.state or report.written) in wanted)
        and (after is None or (report.started or 0.0) >= after)
    ]


def parse_state(word: str) -> str:
    """Return the state that a word names. Raises SubmitError if there is no such state."""
    if (state := word.lower()) not in STATES:
        what = f"'{word}' is not a state of a run" if word else "--state is empty"
        raise SubmitError(
            f"{what}{did_you_mean(state, STATES)} `--state` has one or several, such as failed,lost."
        )
    return state


def parse_since(text: str) -> datetime:
    """Return the moment that `2h`, `3d`, `2026-11-26` or `2026-11-26T08:00` names.

    Raises SubmitError: it is none of these.
    """
    if not text.strip():
        raise SubmitError(
            "the time is empty; use 30m, 2h, 3d, 1w or a date such as 2026-11-26, or leave it out."
        )
    if match := re.fullmatch(r"(\d{1,4})([mhdw])", text):
        return datetime.now().astimezone() - timedelta(**{UNITS[match[2]]: int(match[1])})
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise SubmitError(
            f"{text} is not a time: use 30m, 2h, 3d, 1w or a date such as 2026-11-26."
        ) from None


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _progress(report: Report) -> str:
    p = report.progress
    if p.step is None:
        return "-"
    return f"{p.step}/{p.steps}" if p.steps else str(p.step)


def _best(report: Report, shared: str) -> str:
    """Return the best value of a run, with the name of its metric unless all runs share it."""
    if report.best is None:
        return "-"
    return f"{report.best[1]:.4g}" if report.best[0] == shared else f"{report.best[0]} {report.best[1]:.4g}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else duration(max(0.0, value))
