"""The parts of a run: a start, then one more for each resume. Kept in run.json as `parts`.

Each part says when, in which job and on which hosts it ran, the step it began from, the step it reached, and why it ended.
"""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from src.runs.folder import RunDir, now

COUNT = "steps"
"""File of the run folder with the optimizer steps done, renewed every few seconds: what a killed part had trained."""


def begin(run: RunDir, job: str | None, hosts: Sequence[str]) -> None:
    """A part begins. One that never said why it ended was killed."""
    parts = run.info().get("parts", [])
    if parts:
        parts[-1].setdefault("ended_by", "killed")
    run.update(parts=[*parts, {"started": now(), "job": job, "hosts": list(hosts)}], restarts=len(parts))


def resumed(run: RunDir, step: int) -> None:
    """Training of this part begins at optimizer step `step`; call it before the rows after it leave metrics.csv."""
    parts = run.info().get("parts")
    if not parts:
        return
    for part in parts[-2:-1]:
        part.setdefault("step", max(step, logged_step(run), counted_step(run)))
    count_step(run, step)
    parts[-1]["from_step"] = step
    run.update(parts=parts)


def end(run: RunDir, reason: str, step: int | None = None) -> None:
    """The part ends: completed, failed, or the name of the signal that stopped it."""
    parts = run.info().get("parts", [])
    if parts:
        parts[-1]["ended_by"] = reason
        if step is not None:
            parts[-1]["step"] = step
        run.update(parts=parts)


def logged_step(run: RunDir) -> int:
    """The last step that metrics.csv knows of; 0 without one."""
    try:
        lines = run.metrics_csv.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return 0
    steps = [line.split(",")[0] for line in lines]
    return max((int(s) for s in steps if s.isascii() and s.isdigit()), default=0)


def counted_step(run: RunDir) -> int:
    """The last step that the heartbeat of `src/runs/lock.py` counted; 0 without one."""
    try:
        return int((run.path / COUNT).read_text())
    except (OSError, ValueError):
        return 0


def count_step(run: RunDir, step: int) -> None:
    """Keep the number of optimizer steps done; a disk that does not take it makes the count of lost steps less exact."""
    with suppress(OSError):
        (run.path / COUNT).write_text(f"{step}\n")


def told(info: Mapping[str, Any]) -> str:
    """'resumed 3 times, 0 steps lost'; empty for a run that was never resumed. Steps lost were trained twice."""
    parts = info.get("parts", [])
    if len(parts) < 2:
        return ""
    lost = sum(
        max(0, before.get("step", 0) - after.get("from_step", before.get("step", 0)))
        for before, after in itertools.pairwise(parts)
    )
    times = f"{len(parts) - 1} time{'s' if len(parts) > 2 else ''}"
    return f"resumed {times}, {lost} step{'' if lost == 1 else 's'} lost"
