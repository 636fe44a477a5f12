"""Goodput: the share of the allocation's time that made progress, and how the rest was spent.

Progress is time in training steps whose result is in the run's last state: without waits for a batch or a slow rank, and without steps
that were trained again because an attempt ended before they were saved. The term and the method are those of Google's ML Goodput
Measurement (https://github.com/AI-Hypercomputer/ml-goodput-measurement).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any

TITLES = {
    "progress": "progress",
    "start": "start",
    "data": "waiting for data",
    "slow": "waiting for a slow rank",
    "validation": "validation",
    "test": "test",
    "checkpoint": "checkpoints",
    "lost": "lost in a crash",
    "end": "end",
    "unknown": "not accounted for",
}
"""Categories of an allocation's time and their titles, in the order of the report."""


@dataclass(frozen=True)
class Goodput:
    """Time of one or more attempts by category.

    Attributes:
        seconds: seconds by the keys of `TITLES`; they add up to `whole`.
        whole: seconds from the start of each job to its end, over all attempts, without the time in the queue.
        device_hours: `whole` in hours, times the number of allocated devices.
    """

    seconds: Mapping[str, float]
    whole: float
    device_hours: float

    @property
    def share(self) -> float:
        """The share of the time that made progress, from 0 to 1."""
        return self.seconds["progress"] / self.whole if self.whole else 0.0


def goodput(attempts: Sequence[Mapping[str, Any]]) -> Goodput | None:
    """Return the goodput of a run; None if no attempt has recorded its times.

    Args:
        attempts: attempts of run.json, oldest first. `seconds` is the time in each section; `data` and `slow` are parts of `step`.
            `allocated` is the start of the job, `until` the end of the attempt or its last sign of life, `script_ended` the time when
            the batch script was done with it; the time in between counts as `end` if the attempt recorded its own end.
    """
    pairs = zip_longest(attempts, attempts[1:])
    parts = [attempt_goodput(a, after) for a, after in pairs if isinstance(a.get("seconds"), Mapping)]
    if not parts:
        return None
    seconds = {name: sum(part.seconds[name] for part in parts) for name in TITLES}
    return Goodput(seconds, sum(p.whole for p in parts), sum(p.device_hours for p in parts))


def attempt_goodput(attempt: Mapping[str, Any], after: Mapping[str, Any] | None) -> Goodput:
    """Return the goodput of one attempt. `after` is the next attempt, whose first step shows how much work was saved."""
    spent = {name: _number(value) for name, value in attempt["seconds"].items()}
    began = attempt.get("allocated") or attempt.get("started")
    counted = sum(spent.get(name, 0.0) for name in SECTIONS)
    after_s = _seconds_between(attempt.get("until"), attempt.get("script_ended"))
    whole = max(counted, _seconds_between(began, attempt.get("until")) + after_s)
    stepping, data = spent.get("step", 0.0), spent.get("data", 0.0)
    slow = min(spent.get("slow", 0.0), max(0.0, stepping - data))
    saved = 1 - _lost_share(attempt, after)
    parts = {
        "progress": (stepping - data - slow) * saved + spent.get("program", 0.0),
        "start": spent.get("before", 0.0) + spent.get("start", 0.0),
        "data": data * saved,
        "slow": slow * saved,
        "lost": stepping * (1 - saved),
        **{name: spent.get(name, 0.0) for name in ("validation", "test", "checkpoint", "end")},
    }
    left = max(0.0, whole - sum(parts.values()))
    # the newest attempt may have no `ended_by` because it was killed
    if (attempt.get("ended_by") or "killed") not in UNSEEN:
        parts["end"] += min(left, after_s)
    parts["unknown"] = max(0.0, whole - sum(parts.values()))
    return Goodput(parts, whole, whole * int(attempt.get("devices") or 1) / 3600)


SECTIONS = ("before", "start", "step", "validation", "test", "checkpoint", "end", "program")
"""Sections of `monitor/heartbeat.py`, and `before`: the time of the job before its ranks."""


UNSEEN = ("killed", "hang")
"""Values of `ended_by` of attempts without a recorded end: it is unknown how long they trained after the last record."""


def _lost_share(attempt: Mapping[str, Any], after: Mapping[str, Any] | None) -> float:
    """Return the share of the attempt's steps that the next one trained again."""
    first, last = attempt.get("from_step"), attempt.get("step")
    resumed = (after or {}).get("from_step", last)
    if not (isinstance(first, int) and isinstance(last, int) and isinstance(resumed, int)) or last <= first:
        return 0.0
    return min(1.0, max(0, last - max(first, resumed)) / (last - first))


def _seconds_between(first: Any, then: Any) -> float:
    """Return the seconds between two times of run.json; 0 if one is unknown."""
    try:
        difference = datetime.fromisoformat(str(then)) - datetime.fromisoformat(str(first))
        return max(0.0, difference.total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
