"""Format reports as text, a page for one run or a line for each of several, or as JSON; filter them."""

import fnmatch
import os
import re
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import SubmitError
from train_anywhere.files.atomic import dumps
from train_anywhere.files.terminal.fit import fit, terminal_width
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.files.terminal.table import Column, format_csv, format_table
from train_anywhere.runs.facts import number
from train_anywhere.runs.summary import display_path, duration
from train_anywhere.slurm.status.gather import FAILED, STATES, Cost, Report, RunReports, differing_keys, total
from train_anywhere.slurm.status.job_end import in_words


def sample_line(content: Mapping[str, Any]) -> str:
    """Return a line such as `GPU 0 91%, 34 of 80 GiB; CPUs 45%`. Empty without values."""
    sample, facts = content.get("sample"), content.get("gpus")
    values = {k: number(v) for k, v in sample.items()} if isinstance(sample, dict) else {}
    known = {k: value for k, value in values.items() if value is not None}
    gpus = [g for g in facts if isinstance(g, dict)] if isinstance(facts, list) else []
    sizes = {str(g.get("index")): number(g.get("memory_gib")) for g in gpus}
    uses = {n[1]: use for name, use in known.items() if (n := re.fullmatch(r"gpu(\w+)_use_percent", name))}
    parts = []
    for gpu, use in uses.items():
        used, size = known.get(f"gpu{gpu}_memory_used_gib"), sizes.get(gpu)
        memory = f", {used:.0f} of {size:.0f} GiB" if used is not None and size is not None else ""
        parts.append(f"GPU {gpu} {use:.0f}%{memory}")
    if len(uses) > 8:  # too many to be listed one by one
        mean, least = sum(uses.values()) / len(uses), min(uses.values())
        parts = [f"{len(uses)} GPUs {mean:.0f}% on average, {least:.0f}% the least"]
    if "cpu_use_percent" in known:
        parts.append(f"CPUs {known['cpu_use_percent']:.0f}%")
    every, age = number(content.get("every_seconds")), time.time() - known.get("time", 0.0)
    if every and age > 3 * every + 5:  # overdue
        parts.append(f"{age:.0f} s ago")
    return "; ".join(parts)


INDENT = 13
"""Width of the column with the names of rows."""

LONGEST_NOTE = 400
"""Most characters of a note on the page of a run; its report has all."""

MOST_NODES = 32
"""Most nodes on the page of a run; `--json` has all."""

COLORS = {
    **dict.fromkeys(("completed",), 28),
    **dict.fromkeys(("running", "starting", "completing"), 31),
    **dict.fromkeys(FAILED, 160),
}
"""Colors of states in the 256-color palette, readable on black and on white; all other states are brown, 130."""


def has_colors() -> bool:
    """Return whether the output is a terminal that should get colors, see https://no-color.org."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def color_state(text: str, state: str, colors: bool) -> str:
    """Return the string in the color of a state."""
    return f"\x1b[38;5;{COLORS.get(state, 130)}m{text}\x1b[0m" if colors else text


def format_status(gathered: RunReports, many: bool) -> str:
    """Return the page of one run, or a line for each of `many` or of a sweep, fitted to the terminal."""
    known = [report for report in gathered.reports if not report.trouble]
    width, colors = terminal_width(), has_colors()
    if not known:
        return "no run is selected." if many else ""
    if len(gathered.reports) == 1 and not many:
        return page(known[0], width, colors)
    return "\n".join([list_runs(known, width, colors), *next_lines(() if many else gathered.next, width)])


def headline(report: Report) -> str:
    """Return one line about a run: id, state, jobs, progress, metrics."""
    states = [report.state] if report.state else []
    if report.state in ("", "unknown"):
        states.append(f"run.json says {report.written}")
    return one_line("  ".join([report.id, *states, report.where, *progress_parts(report), *metrics(report)]))


def page(report: Report, width: int | None = None, colors: bool = False) -> str:
    """Return the page of one run, without rows that would be empty."""
    rows = [f"{f'{name}:' if name else '':<{INDENT}}{one_line(text)}" for name, text in _rows(report) if text]
    state, first = report.state or report.written, fit(headline(report), width, 2)
    first = first.replace(f"  {state}", f"  {color_state(state, state, colors)}", 1)
    return "\n".join([first, *(fit(row, width, INDENT) for row in rows), *next_lines(report.next, width)])


def next_lines(commands: Sequence[str], width: int | None = None) -> list[str]:
    """Return commands, one per line."""
    lines = (f"{'' if at else 'Next:':<{INDENT}}{one_line(command)}" for at, command in enumerate(commands))
    return [fit(line, width, INDENT) for line in lines]


def progress_parts(report: Report) -> list[str]:
    """Return epoch and step, and what resumes have cost."""
    p, parts = report.progress, []
    if p.step is not None:
        step = max(p.step, report.checkpoint.step if report.checkpoint else 0)  # a checkpoint is progress too
        epochs, steps = (f"/{n}" if n is not None else "" for n in (p.epochs, p.steps))
        parts.append(f"epoch {'?' if p.epoch is None else p.epoch}{epochs}, step {step}{steps}")
    return [*parts, report.resumed] if report.resumed else parts


def metrics(report: Report) -> list[str]:
    """Return the metrics of evaluations. While there are none, those of the training."""
    known = report.progress.metrics
    shown = {k: v for k, v in known.items() if "train" not in k and k != "lr"} or (
        known if report.alive else {}
    )
    return [f"{name} {'nan' if value is None else format(value, '.4f')}" for name, value in shown.items()]


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    yield "Run folder", display_path(report.path)
    note = report.overrides.get("note", "null")
    note = note[1:-1].replace(f"\\{note[0]}", note[0]) if note[:1] in ("'", '"') else note
    yield "About", "" if note == "null" else textwrap.shorten(note, LONGEST_NOTE, placeholder=" ...")
    if report.pending:
        reason = in_words(report.pending.reason) if report.pending.reason else "no reason is given"
        if report.pending.reason.startswith("Dependency") and (first := report.overrides.get("after")):
            reason += f", here after={first}"
        start = f"; expected to start {report.pending.start}" if report.pending.start else ""
        yield "Waits", reason + start
    yield "Why", report.why
    if report.alive:
        yield "Nodes", ", ".join([*report.hosts[:MOST_NODES], *_more(len(report.hosts))])
        yield "Now", _now(report)
        yield from ((host, sample_line(node)) for host, node in [*report.nodes.items()][:MOST_NODES])
        yield "", "".join(_more(len(report.nodes)))
    yield from (("Note", sentence) for sentence in report.verdicts)
    yield from report.rows.items()
    if saved := report.checkpoint:
        behind = (report.progress.step or 0) - saved.step  # steps that a kill would lose
        since = f", {behind} step{'s'[: behind > 1]} since" if behind > 0 else ""
        yield "Checkpoint", f"step {saved.step}, {duration(saved.age)} ago{since}"
    yield from (("" if at else "Log", display_path(path)) for at, path in enumerate(report.logs))
    for title, served in (("TensorBoard", report.tensorboard), ("Dashboard", report.dashboard)):
        if served:
            yield title, "  ".join(served.values())


def _now(report: Report) -> str:
    """Return a phrase such as `train, 1234 images/s, 3 min left, last progress 2 s ago`."""
    p = report.progress
    if p.section is None or report.state == "completing":  # it makes no progress any more
        return p.section or ""
    ages = [p.moved, report.checkpoint.age if report.checkpoint else None]
    moved = [age for age in ages if age is not None]
    parts = [p.section, *([f"{p.rate:.0f} {p.unit}/s"] if p.rate else [])]
    parts += [f"{duration(p.seconds_left)} left"] if p.seconds_left else []
    parts += [f"waits for data {p.data_wait:.0%} of the time"] if p.data_wait is not None else []
    parts += [f"efficiency {p.efficiency:.0%}"] if p.efficiency is not None else []
    parts += [f"last progress {duration(min(moved))} ago"] if moved else []
    return ", ".join(parts)


def _more(nodes: int) -> list[str]:
    return [f"{nodes - MOST_NODES:,} more (--json)"] if nodes > MOST_NODES else []


def to_json(gathered: RunReports) -> str:
    """Return the reports, differing keys, commands and notes as JSON. nan and inf are null."""
    runs = [{**asdict(report), "alive": report.alive} for report in gathered.reports]
    others = {"next": gathered.next, "notes": gathered.notes, "trouble": gathered.trouble}
    return dumps({"runs": runs, "differing": differing_keys(gathered.reports), **others})


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


def format_costs(costs: Sequence[Cost], width: int | None, as_csv: bool) -> str:
    """Return a table with a line for all, or a CSV file without it."""
    hours, energy, unknown = ("gpu_hours", "kwh", "") if as_csv else ("GPU hours", "kWh", "-")
    columns = [
        Column[Cost]("name", lambda c: c.name),
        Column[Cost]("user", lambda c: c.user),
        Column[Cost]("runs", lambda c: str(c.runs)),
        Column[Cost](hours, lambda c: f"{c.gpu_hours:.2f}"),
        Column[Cost](energy, lambda c: unknown if c.kwh is None else f"{c.kwh:.2f}"),
    ]
    if as_csv:
        rows = [[column.value(cost) for column in columns] for cost in costs]
        return format_csv([[column.title for column in columns], *rows]).rstrip("\n")
    whole = [replace(total(costs), name="all", user="")] if len(costs) > 1 else []
    return format_table(columns, [*costs, *whole], width)
