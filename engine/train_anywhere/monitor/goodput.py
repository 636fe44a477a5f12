"""Goodput: the share of the allocation's time that made progress, and where the rest went.

Progress is time in training steps whose result is in the run's last state: not the wait for a batch, not the wait for a slow
rank, and not the steps that were trained again because the attempt ended before they were saved. The word and the way of
counting are those of Google's ML Goodput Measurement (https://github.com/AI-Hypercomputer/ml-goodput-measurement).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any

WORDS = {
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
"""The parts of an allocation's time, in the order in which they are shown."""


@dataclass(frozen=True)
class Goodput:
    """Where the time of one or more attempts went.

    Attributes:
        seconds: by the names of `WORDS`; they add up to `whole`.
        whole: seconds from the start of the job to its end, over all attempts; the queue is not counted.
        device_hours: `whole` times the devices that were held.
    """

    seconds: Mapping[str, float]
    whole: float
    device_hours: float

    @property
    def share(self) -> float:
        """Of the whole that made progress, from 0 to 1."""
        return self.seconds["progress"] / self.whole if self.whole else 0.0


def goodput(attempts: Sequence[Mapping[str, Any]]) -> Goodput | None:
    """That of a run, from the attempts in its run.json; None where no attempt has recorded its times.

    Args:
        attempts: oldest first. `seconds` of an attempt holds the time in each section, `data` and `slow` being parts of `step`;
            `allocated` is when its job began; `until` when it ended, or was last seen; `script_ended` when the batch script was
            done with it, which counts as `end` of an attempt that recorded its own.
    """
    known = [
        (a, after)
        for a, after in zip_longest(attempts, attempts[1:])
        if isinstance(a.get("seconds"), Mapping)
    ]
    parts = [of_attempt(attempt, after) for attempt, after in known]
    if not parts:
        return None
    seconds = {name: sum(part.seconds[name] for part in parts) for name in WORDS}
    return Goodput(seconds, sum(p.whole for p in parts), sum(p.device_hours for p in parts))


def of_attempt(attempt: Mapping[str, Any], after: Mapping[str, Any] | None) -> Goodput:
    """That of one attempt; `after` is the one that followed, which tells how far the work was saved."""
    spent = {name: _number(value) for name, value in attempt["seconds"].items()}
    began = attempt.get("allocated") or attempt.get("started")
    counted = sum(spent.get(name, 0.0) for name in SECTIONS)
    after_s = _between(attempt.get("until"), attempt.get("script_ended"))
    whole = max(counted, _between(began, attempt.get("until")) + after_s)
    stepping, data = spent.get("step", 0.0), spent.get("data", 0.0)
    slow = min(spent.get("slow", 0.0), max(0.0, stepping - data))
    kept = 1 - _lost_share(attempt, after)
    parts = {
        "progress": (stepping - data - slow) * kept,
        "start": spent.get("before", 0.0) + spent.get("start", 0.0),
        "data": data * kept,
        "slow": slow * kept,
        "lost": stepping * (1 - kept),
        **{name: spent.get(name, 0.0) for name in ("validation", "test", "checkpoint", "end")},
    }
    left = max(0.0, whole - sum(parts.values()))
    # a run that was killed and did not go on yet has no word
    if (attempt.get("ended_by") or "killed") not in UNSEEN:
        parts["end"] += min(left, after_s)
    parts["unknown"] = max(0.0, whole - sum(parts.values()))
    return Goodput(parts, whole, whole * int(attempt.get("devices") or 1) / 3600)


SECTIONS = ("before", "start", "step", "validation", "test", "checkpoint", "end")
"""Those of `monitor/heartbeat.py`, and the time of the job before its ranks."""


UNSEEN = ("killed", "hang")
"""Ends of an attempt that rank 0 did not live to count: nobody knows how much of the last seconds it still trained."""


def _lost_share(attempt: Mapping[str, Any], after: Mapping[str, Any] | None) -> float:
    """Share of the attempt's steps that the next one trained again."""
    first, last = attempt.get("from_step"), attempt.get("step")
    resumed = (after or {}).get("from_step", last)
    if not (isinstance(first, int) and isinstance(last, int) and isinstance(resumed, int)) or last <= first:
        return 0.0
    return min(1.0, max(0, last - max(first, resumed)) / (last - first))


def _between(first: Any, then: Any) -> float:
    """Seconds between two times of run.json; 0 where one is not known."""
    try:
        return max(
            0.0, (datetime.fromisoformat(str(then)) - datetime.fromisoformat(str(first))).total_seconds()
        )
    except (ValueError, TypeError):
        return 0.0


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
