"""Find the best of several runs by the metric that they monitor."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_anywhere.config.checks.monitors import from_keras_name
from train_anywhere.config.schema import Checkpoint
from train_anywhere.errors import CheckpointError, SubmitError
from train_anywhere.files import HAS_PROJECT
from train_anywhere.runs import facts
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import typed_overrides
from train_anywhere.runs.summary import is_program, train_command
from train_anywhere.slurm.status.find_runs import RunEntry


@dataclass(frozen=True)
class Best:
    """The run and step at which a metric was best.

    Attributes:
        value, step: the best value, and the optimizer steps done when it was measured.
        compared, left_out: number of runs that have values of the metric, and of runs that have none.
        command: trains the run again.
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


Curves = dict[Path, list[tuple[int, float]]]
"""Steps and values of a metric, by run folder."""


def measure(
    found: Sequence[RunEntry], metric: str | None = None, mode: str | None = None
) -> tuple[str, str, Curves]:
    """Return a metric, its mode, and the values of each run that has measured it.

    The default metric is `checkpoint.monitor` of the first run that has one. The default mode is `checkpoint.mode` of a run that
    monitors the metric.

    Raises SubmitError: there is nothing to compare, or the mode is not known. Raises CheckpointError: no run.json can be read.
    """
    watched = {}
    for run in found:
        with suppress(CheckpointError):  # `list` and `status` print why
            watched[run.folder.path] = watched_metric(run.folder, run.folder.read_info())
    if not watched:
        found[0].folder.read_info()  # raises the reason
    name = metric or next((m for m, _ in watched.values() if m), None)
    if name is None:
        raise SubmitError(
            "none of these runs has a checkpoint.monitor; name a metric with --metric, and --mode min or max."
        )
    names = (name, from_keras_name(name))
    modes = (w for m, w in watched.values() if w and m and {m, from_keras_name(m)} & {*names})
    way = mode or next(modes, None)
    if way not in ("min", "max"):
        raise SubmitError(f"whether a low or a high {name} is better is not known; add --mode min or max.")
    measured = {path: curve for path in watched if (curve := facts.metric_values(RunDir(path), name))}
    if not measured:
        raise SubmitError(f"none of these {len(found)} runs has measured {name} yet.")
    if all(value != value for curve in measured.values() for _, value in curve):
        raise SubmitError(f"{name} is nan in all of these runs.")
    return name, way, measured


def find_best(found: Sequence[RunEntry], metric: str | None = None, mode: str | None = None) -> Best:
    """Find the best value of a metric that any of the runs has reached, in any epoch; raise as `measure` does."""
    name, way, measured = measure(found, metric, mode)
    choose: Callable[..., tuple[Path, int, float]] = min if way == "min" else max
    known = ((path, step, value) for path, curve in measured.items() for step, value in curve)
    path, step, value = choose((point for point in known if point[2] == point[2]), key=lambda point: point[2])
    left_out = len(found) - len(measured)
    return Best(path.name, path, name, way, value, step, len(measured), left_out, rerun_command(RunDir(path)))


def rerun_command(run: RunDir) -> str:
    """Return the command that trains a run again. Empty if its overrides can't be read."""
    words = typed_overrides(run)
    if words is None:
        return ""
    if not is_program(run):
        return f"{train_command()} {shlex.join(words)}".rstrip()
    program = facts.read_config(run).get("program") or {}
    command = shlex.join(word for word in program.get("command") or [] if "{args.member}" not in word)
    if not HAS_PROJECT:
        return f"python {command}"
    return f"{train_command('run.py')} {shlex.join([w.lstrip('+') for w in words])} -- {command}"


def watched_metric(run: RunDir, info: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return `checkpoint.monitor` and `checkpoint.mode`, from run.json if it has them: config.yaml takes 100 times as long."""
    section = info if "monitor" in info else facts.read_config(run).get("checkpoint")
    known = section if isinstance(section, dict) else {}
    metric, mode = known.get("monitor"), known.get("mode")
    return (metric if isinstance(metric, str) else None), (mode if isinstance(mode, str) else None)


def best_so_far(run: RunDir, info: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the metric that a run monitors and its best value. None if it has none."""
    metric, mode = watched_metric(run, info)
    value = facts.best_value(run, metric, mode) if metric and mode in ("min", "max") else None
    return None if value is None or metric is None else (metric, value)


def sweep_result(run: RunDir, checkpoint: Checkpoint) -> float | SubmitError | None:
    """Return the best value of an ended run for a sweeper, or why there is none."""
    state = run.read_info().get("state")
    if state != "completed":
        return SubmitError(f"{run.id} is {state}, not completed: it has no result; look at its log.")
    metric, mode = checkpoint.monitor, checkpoint.mode
    return facts.best_value(run, metric, mode) if metric and mode else None
