"""Format reports as text, a page for one run, or as JSON."""

import os
import re
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from train_anywhere.files.atomic import dumps
from train_anywhere.files.terminal.fit import fit
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.runs.facts import number
from train_anywhere.runs.summary import display_path, duration
from train_anywhere.slurm.status.gather import FAILED, Report, RunReports, differing_keys
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
    content = {
        "runs": [to_plain({**asdict(report), "alive": report.alive}) for report in gathered.reports],
        "differing": differing_keys(gathered.reports),
        "next": list(gathered.next),
        "notes": list(gathered.notes),
        "trouble": list(gathered.trouble),
    }
    return dumps(content)


def to_plain(value: Any) -> Any:
    """Return the value with strings in place of paths, at any depth."""
    if isinstance(value, dict):
        return {key: to_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
