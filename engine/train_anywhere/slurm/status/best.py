"""The best of several runs, by the metric that each of them monitors."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError, SubmitError
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import read_overrides
from train_anywhere.runs.summary import train_command
from train_anywhere.slurm.status.find_runs import Submitted
from train_anywhere.slurm.status.sources import run_files


@dataclass(frozen=True)
class Best:
    """Where a metric was best.

    Attributes:
        metric, mode: what is compared, and whether the least or the greatest is best.
        value, step: the value, and the optimizer steps done there.
        compared: how many runs have such values.
        left_out: how many of the runs have none, or monitor another metric.
        command: trains it again.
    """

    id: str
    path: Path
    metric: str
    mode: str
    value: float
    step: int
    compared: int
    left_out: int
    command: str


def best(found: Sequence[Submitted], metric: str | None = None, mode: str | None = None) -> Best:
    """The best value that any of the runs has reached, in any of its epochs.

    Args:
        metric: compared; None: `checkpoint.monitor` of the first run that has one.
        mode: min or max; None: `checkpoint.mode` of a run that monitors this metric.

    Raises:
        SubmitError: there is nothing to compare, or nobody says which value is better.
    """
    watched = {run.folder.path: monitored(run.folder) for run in found}
    name = metric or next((m for m, _ in watched.values() if m), None)
    if name is None:
        raise SubmitError(
            "none of these runs has a checkpoint.monitor; name a metric with --metric, and --mode min or max."
        )
    way = mode or next((w for m, w in watched.values() if m == name and w), None)
    if way not in ("min", "max"):
        raise SubmitError(f"whether a low or a high {name} is better is not known; add --mode min or max.")
    measured = {path: curve for path in watched if (curve := values(RunDir(path), name))}
    if not measured:
        raise SubmitError(f"none of these {len(found)} runs has measured {name} yet.")
    choose: Callable[..., tuple[Path, int, float]] = min if way == "min" else max
    points = [
        (path, step, value) for path, curve in measured.items() for step, value in curve if value == value
    ]
    if not points:
        raise SubmitError(f"{name} is nan in all of these runs.")
    path, step, value = choose(points, key=lambda point: point[2])
    left_out = len(found) - len(measured)
    return Best(path.name, path, name, way, value, step, len(measured), left_out, command(RunDir(path)))


def command(run: RunDir) -> str:
    """What to type to train a run again, from what was typed for it."""
    with suppress(CheckpointError):
        words = [word.removeprefix("++") for word in read_overrides(run) if not word.startswith("wait=")]
        return f"{train_command()} {shlex.join(words)}".rstrip()
    return ""


def values(run: RunDir, metric: str) -> list[tuple[int, float]]:
    """Step and value where it was measured; without a metrics.csv (`monitor.csv=false`) the last one, which run.json has."""
    if run.metrics_csv.exists():
        return run_files.curve(run, metric)
    try:
        last = run_files.progress(run, run.info())
    except CheckpointError:  # `list` and `status` say so
        return []
    value = last.metrics.get(metric)
    return [(last.step or 0, value)] if value is not None else []


def monitored(run: RunDir) -> tuple[str | None, str | None]:
    """`checkpoint.monitor` and `checkpoint.mode` of a run, as far as its configuration can be read."""
    section = run_files.config(run).get("checkpoint")
    known = section if isinstance(section, dict) else {}
    metric, mode = known.get("monitor"), known.get("mode")
    return (metric if isinstance(metric, str) else None), (mode if isinstance(mode, str) else None)


def reached(run: RunDir, metric: str, mode: str) -> float | None:
    """The best value of a run, in any of its validations; None if it has none."""
    known = [value for _, value in values(run, metric) if value == value]
    return {"min": min, "max": max}[mode](known) if known else None


def result(run: RunDir, config: Config) -> float | SubmitError | None:
    """What a sweeper is told of a run that has ended: the best value of `checkpoint.monitor`, or why there is none."""
    state = run.info().get("state")
    if state != "completed":
        return SubmitError(f"{run.id} is {state}, not completed: it has no result; look at its log.")
    kept = config.checkpoint
    return reached(run, kept.monitor, kept.mode) if kept.monitor and kept.mode else None
