"""The table of several runs: one line for each, fitted to the terminal."""

import fnmatch
import re
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import SubmitError
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.files.terminal.table import Column, format_table
from train_anywhere.runs.summary import duration
from train_anywhere.slurm.status.gather import STATES, Report, differing_keys
from train_anywhere.slurm.status.text_page import color_state

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
MIN_DIFFERENCES = 12
"""Room for what differs between runs, for which age and duration give way."""


def list_runs(reports: Sequence[Report], width: int | None, colors: bool = False) -> str:
    """Return the table."""
    names = {report.name for report in reports}
    keys = {name: differing_keys([r for r in reports if r.name == name]) for name in names}
    metrics = {report.best[0] for report in reports if report.best}
    shared = next(iter(metrics)) if len(metrics) == 1 else ""

    def progress(r: Report) -> str:
        step, steps = r.progress.step, r.progress.steps
        return "-" if step is None else f"{step}/{steps}" if steps else str(step)

    def best(r: Report) -> str:
        """Return the best value of a run, with the name of its metric unless all runs share it."""
        name, value = r.best or ("", None)
        return "-" if value is None else f"{'' if name == shared else f'{name} '}{value:.4g}"

    def differences(r: Report) -> str:
        known = [key for key in keys[r.name] if key in r.overrides]
        words = [f"{key.rpartition('.')[2]}={r.overrides[key]}" for key in known]
        return "  ".join(filter(None, [*words, r.why or (r.where if r.state == "pending" else "")]))

    columns = [
        Column[Report]("run", lambda r: r.id),
        Column[Report]("name", lambda r: r.name),
        Column[Report](
            "state",
            lambda r: r.state or r.written,
            paint=lambda text, r: color_state(text, r.state or r.written, colors),
        ),
        Column[Report]("progress", progress, drop=1),
        Column[Report](one_line(shared) or "best", best, drop=2),
        Column[Report]("age", lambda r: _seconds(r.started and time.time() - r.started), drop=3),
        Column[Report]("took", lambda r: _seconds(r.took), drop=4),
    ]
    tail = Column[Report]("differs", differences)
    return format_table(columns, reports, width, tail, MIN_DIFFERENCES)


def select(
    reports: Sequence[Report], name: str | None, states: str | None, since: str | None
) -> list[Report]:
    """Return the runs that pass all filters. Raises SubmitError for an unknown state or an empty filter."""
    after = None if since is None else parse_since(since).timestamp()
    wanted = None if states is None else {state.strip().lower() for state in states.split(",")}
    for state in sorted((wanted or set()) - STATES):
        what = f"'{state}' is not a state of a run" if state else "--state is empty"
        raise SubmitError(
            f"{what}{did_you_mean(state, STATES)} `--state` has one or several, such as failed,lost."
        )
    if name is not None and not name.strip():
        raise SubmitError("--name is empty; use a pattern such as 'digits*', or leave it out.")
    return [
        report
        for report in reports
        if (name is None or fnmatch.fnmatch(report.name, name))
        and (wanted is None or (report.state or report.written) in wanted)
        and (after is None or (report.started or 0.0) >= after)
    ]


def parse_since(text: str) -> datetime:
    """Return the moment that `2h`, `3d`, `2026-11-26` or `2026-11-26T08:00` names. Raises SubmitError."""
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


def _seconds(value: float | None) -> str:
    return "-" if value is None else duration(max(0.0, value))
