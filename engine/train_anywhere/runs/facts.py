"""The only reader of the small files of a run folder. Unreadable values are skipped."""

import csv
import itertools
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from train_anywhere.config.checks.monitors import from_keras_name
from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import open_descriptor, read_json, read_text
from train_anywhere.runs.attempts import read_logged_step, read_recorded_step, step_time
from train_anywhere.runs.folder import ATTEMPTS, RunDir, is_integer, is_number
from train_anywhere.runs.reopen.frozen import load_yaml, typed_overrides


@dataclass(frozen=True)
class RecordedCheckpoint:
    """The newest complete checkpoint of a run, completed `age` seconds ago."""

    step: int
    path: Path
    age: float


@dataclass(frozen=True)
class RecordedProgress:
    """The progress of a run.

    Attributes:
        epoch: the current epoch, counted from 1; for a run that has ended, the number of completed epochs.
        epochs: number of epochs of the whole run; None for a run that has ended.
        steps: optimizer steps of the whole run; None for a run that has ended.
        section: train, validation, test, checkpoint ...; None for a run that has ended.
        rate: training throughput, in `unit` per second.
        unit: what `rate` counts, such as samples or tokens.
        seconds_left: estimated seconds until the last step, at the average pace so far.
        moved: seconds since the last progress.
        data_wait: share of the training time spent waiting for the next batch.
        metrics: newest value of each metric; None if it is nan or inf.
        efficiency: share of the step time in which the ranks do not wait for each other; None for one rank.
    """

    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None
    section: str | None = None
    rate: float | None = None
    unit: str = "samples"
    seconds_left: float | None = None
    moved: float | None = None
    data_wait: float | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    efficiency: float | None = None


Series = list[tuple[float, float]]
"""Points (x, y) of a curve."""


def read_progress(run: RunDir, info: Mapping[str, Any]) -> RecordedProgress:
    """Read the progress, from live.json while the run trains, else from run.json."""
    now, newest = read_json(run.monitor / "live.json"), (info.get(ATTEMPTS) or [{}])[-1]
    written, began = _number(now.get("time")), moment(newest.get("started"))
    # of an earlier attempt, or the end of this one was recorded
    old = written is None or began is None or "step" in newest or written < began - 1
    found = info if old else now
    known = found.get("metrics")
    named = known.items() if isinstance(known, dict) else ()
    fields: dict[str, Any] = {name: _whole(found.get(name)) for name in ("epoch", "step", "steps")}
    fields |= {"rate": _number(found.get("rate")), "unit": str(found.get("unit", "samples"))}
    fields["metrics"] = {k: _number(v) for k, v in named if v is None or _number(v) is not None}
    if old:
        return RecordedProgress(**fields, efficiency=step_time(info.get(ATTEMPTS) or [])[2])
    fields |= {name: _number(now.get(name)) for name in ("seconds_left", "data_wait", "efficiency")}
    fields |= {"epochs": _whole(now.get("epochs")), "section": str(now.get("section"))}
    if fields["step"] is not None:
        fields["step"] = max(fields["step"], read_recorded_step(run))
    return RecordedProgress(**fields, moved=max(0.0, time.time() - (written or 0.0)))


def find_checkpoint(run: RunDir) -> RecordedCheckpoint | None:
    """Return the newest checkpoint. Only a complete one is named after its step."""
    with suppress(OSError, ValueError):
        folders = (p for p in run.checkpoints.iterdir() if p.name.isdecimal() and p.is_dir())
        newest = max(folders, key=lambda path: int(path.name))
        return RecordedCheckpoint(int(newest.name), newest, max(0.0, time.time() - newest.stat().st_mtime))
    return None


def lost_steps(run: RunDir, info: Mapping[str, Any], alive: bool) -> int:
    """Return the number of steps trained twice, or to be trained again: those between a checkpoint and the end of an attempt.

    An attempt that was killed is seen at once: `alive` is whether the newest one still runs.
    """
    attempts = info.get(ATTEMPTS) or []
    ends = [(a.get("step"), b.get("from_step")) for a, b in itertools.pairwise(attempts)]
    newest = attempts[-1] if attempts else {}
    trains = alive and "from_step" in newest
    if newest and not trains and info.get("state") != "completed" and info.get("framework") != "program":
        saved, done = find_checkpoint(run), newest.get("step")
        if done is None:
            done = max(newest.get("from_step") or 0, read_logged_step(run), read_recorded_step(run))
        ends.append((done, saved.step if saved else 0))
    return sum(max(0, last - first) for last, first in ends if last is not None and first is not None)


def resume_summary(run: RunDir, info: Mapping[str, Any], alive: bool = False) -> str:
    """Return 'resumed 3 times, 0 steps lost'; of a run that was never resumed only what it has lost, or "".

    If the number of nodes changed, ', on 4, then 3 nodes' follows.
    """
    attempts, lost = info.get(ATTEMPTS, []), lost_steps(run, info, alive)
    steps = f"{lost} step{'' if lost == 1 else 's'} lost"
    if len(attempts) < 2:
        return steps if lost else ""
    times = f"{len(attempts) - 1} time{'s' if len(attempts) > 2 else ''}"
    nodes = [key for key, _ in itertools.groupby(len(a.get("hosts") or [""]) for a in attempts)]
    changed = f", on {', then '.join(map(str, nodes))} node{'s'[: nodes[-1] > 1]}" if len(nodes) > 1 else ""
    return f"resumed {times}, {steps}{changed}"


def read_nodes(run: RunDir, info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each node's newest file in the newest attempt, by host."""
    # files of these names in RUN/monitor/ are others
    hosts = [h for h in info.get("hosts") or () if h not in ("live", "watch", "") and "/" not in h]
    return {host: content for host in hosts if (content := read_json(run.monitor / f"{host}.json"))}


def read_overrides(run: RunDir) -> dict[str, str]:
    """Return the overrides of the run, by key, without secrets."""
    pairs = [line.split("=", 1) for line in typed_overrides(run) or [] if "=" in line]
    return {key.lstrip("+~"): value for key, value in pairs}


def read_config(run: RunDir) -> dict[str, Any]:
    """Return config.yaml as it is written. Empty if it can't be read."""
    with suppress(OSError, ValueError, TypeError, RecursionError, yaml.YAMLError):
        return dict(load_yaml(read_text(run.config)))
    return {}


def metric_values(run: RunDir, metric: str) -> list[tuple[int, float]]:
    """Return (step, value) of each measurement. Without metrics.csv only of the last.

    The metric may have its name in Keras, if the run has none of exactly this name.
    """
    names = (metric, from_keras_name(metric))
    if run.metrics_csv.exists():
        known = (curves(run.metrics_csv, name).get(name) for name in names)
        return [(int(step), value) for step, value in next(filter(None, known), [])]
    try:
        last = read_progress(run, run.read_info())
    except CheckpointError:  # `list` and `status` report it
        return []
    value = next((last.metrics[name] for name in names if name in last.metrics), None)
    return [(last.step or 0, value)] if value is not None else []


def best_value(run: RunDir, metric: str, mode: str) -> float | None:
    """Return the best value of a run in any of its validations. None if it has none."""
    known = [value for _, value in metric_values(run, metric) if value == value]
    return {"min": min, "max": max}[mode](known) if known else None


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    return value if is_integer(value) else None


def moment(text: object) -> float | None:
    """Return a time of run.json in Unix seconds; None if it is invalid."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def curves(path: Path, only: str = "") -> dict[str, Series]:
    """Return the columns of metrics.csv over the optimizer step, all or one."""
    found: dict[str, Series] = {}
    with (
        suppress(OSError, ValueError, csv.Error),
        open(open_descriptor(path, os.O_RDONLY)[0], encoding="utf-8-sig", newline="") as file,
    ):
        lines = csv.reader(file)
        names = next(lines, [])
        at = names.index("step")
        for row in lines:
            if (step := number("".join(row[at : at + 1]))) is None or not math.isfinite(step):
                continue
            for name, text in zip(names, row, strict=False):
                shown = name == only if only else name not in ("step", "epoch")
                if shown and (value := number(text)) is not None:
                    found.setdefault(name, []).append((step, value))
    return found


def rows(path: Path, most: int | None = None) -> list[dict[str, str]]:
    """Return the rows of a CSV file, at most `most` of them, evenly spread."""
    try:
        header, *lines = read_text(path, largest=math.inf).splitlines()
        stretch = math.ceil(len(lines) / most) if most and lines else 1
        return [*csv.DictReader([header, *lines[::-1][::stretch][::-1]])]
    except (OSError, ValueError, csv.Error):
        return []


def number(value: object) -> float | None:
    """Return a value of a CSV or JSON file as a number, if it is one."""
    try:
        return float(value) if isinstance(value, str | int | float) and value != "" else None
    except ValueError:
        return None
