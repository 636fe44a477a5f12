"""Place attempts and checkpoints on a time axis, in percent of its length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Span:
    """One attempt on the axis.

    Attributes:
        left, width: start and length in percent of the axis.
        text: description of the attempt.
        well: whether it ended as planned.
    """

    left: float
    width: float
    text: str
    well: bool


@dataclass(frozen=True)
class Mark:
    """One checkpoint on the axis; `left` is its time in percent."""

    left: float
    text: str


@dataclass(frozen=True)
class Timeline:
    """Time axis from the first start to the last end; `hours` is its length."""

    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]
    hours: float


def timeline(attempts: Sequence[Mapping[str, Any]], checkpoints: Path) -> Timeline | None:
    """Return the timeline of a run; None if its attempts have not recorded their times.

    Args:
        attempts: attempts of run.json.
        checkpoints: folder of the run's checkpoints, each of which is marked.
    """
    known = [
        (attempt, began, until)
        for attempt in attempts
        if (began := moment(attempt.get("started"))) is not None
        and (until := moment(attempt.get("until"))) is not None
    ]
    if not known:
        return None
    first, last = min(t for _, t, _ in known), max(t for _, _, t in known)
    length = max(1.0, last - first)
    spans = [
        Span(100 * (t - first) / length, max(0.4, 100 * (until - t) / length), describe(a), has_ended_well(a))
        for a, t, until in known
    ]
    marks = [
        Mark(100 * (t - first) / length, f"checkpoint of step {step}")
        for step, t in checkpoint_times(checkpoints)
    ]
    return Timeline(tuple(spans), tuple(m for m in marks if 0 <= m.left <= 100.5), length / 3600)


def describe(attempt: Mapping[str, Any]) -> str:
    """Return an attempt's steps, nodes, job and end as a string."""
    hosts = attempt.get("hosts") or []
    where = f" on {', '.join(hosts[:4])}{' ...' if len(hosts) > 4 else ''}" if hosts else ""
    if size := attempt.get("world_size"):
        where += f" ({size} rank{'s' if size > 1 else ''})"
    job = f", job {attempt['job']}" if attempt.get("job") else ""
    steps = f"steps {attempt.get('from_step', '?')} to {attempt.get('step', '?')}"
    end = str(attempt.get("ended_by", "running"))
    reason = f" ({attempt['reason']})" if attempt.get("reason") else ""
    return f"{steps}{where}{job}: {'stopped by ' if end.startswith('SIG') else ''}{end}{reason}"


def has_ended_well(attempt: Mapping[str, Any]) -> bool:
    """Return whether an attempt was completed, or stopped by a signal with a checkpoint."""
    return attempt.get("ended_by") not in ("killed", "failed")


def checkpoint_times(checkpoints: Path) -> list[tuple[int, float]]:
    """Return step and time of each checkpoint in the folder."""
    try:
        found = [p for p in checkpoints.iterdir() if p.name.isdecimal() and p.is_dir()]
        return sorted((int(p.name), p.stat().st_mtime) for p in found)
    except OSError:
        return []


def moment(text: object) -> float | None:
    """Return a time of run.json in Unix seconds; None if it is invalid."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
