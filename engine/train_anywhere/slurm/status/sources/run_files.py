"""The small files of a run folder. They may be half-written, or of another version of this project: what can't be read is left out."""

import csv
import math
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from train_anywhere.files.atomic import read_text
from train_anywhere.files.disk_clock import disk_time
from train_anywhere.monitor.efficiency import step_time
from train_anywhere.monitor.ranks import read_json
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.slurm.status.run_status import Checkpoint, Progress

DAY_S = 86400.0

NOT_HOSTS = ("live", "watch")
"""Files of RUN/monitor/ that are of no host; nor are those that begin with `ranks-`."""


def live(run: RunDir, info: Mapping[str, Any]) -> dict[str, Any]:
    """monitor/live.json, if it is of the newest attempt and knows more than run.json; else empty."""
    attempts = info.get(ATTEMPTS) or [{}]
    content = read_json(run.path / "monitor" / "live.json")
    written, began = _number(content.get("time")), _moment(attempts[-1].get("started"))
    ended = "step" in attempts[-1]
    return {} if written is None or began is None or ended or written < began - 1 else content


def progress(run: RunDir, info: Mapping[str, Any]) -> Progress:
    """From live.json while the run trains, or if its end was not recorded; else from run.json."""
    now = live(run, info)
    if not now:
        return Progress(
            epoch=_whole(info.get("epoch")),
            step=_whole(info.get("step")),
            rate=_number(info.get("rate")),
            unit=str(info.get("unit", "samples")),
            efficiency=step_time(info.get(ATTEMPTS) or []).efficiency,
            metrics=_metrics(info),
        )
    return Progress(
        epoch=_whole(now.get("epoch")),
        epochs=_whole(now.get("epochs")),
        step=_whole(now.get("step")),
        steps=_whole(now.get("steps")),
        section=str(now.get("section")),
        rate=_number(now.get("rate")),
        unit=str(now.get("unit", "samples")),
        seconds_left=_number(now.get("seconds_left")),
        moved=age(run.path / "monitor" / "live.json", now["time"]),
        data_wait=_number(now.get("data_wait")),
        efficiency=_number(now.get("efficiency")),
        metrics=_metrics(now),
    )


def checkpoint(run: RunDir) -> Checkpoint | None:
    """The newest one. Its folder has its name when it is complete, and not before."""
    try:
        steps = {int(p.name): p for p in run.checkpoints.iterdir() if p.name.isdecimal() and p.is_dir()}
        newest = max(steps)
        saved = steps[newest].stat().st_mtime
    except (OSError, ValueError):
        return None
    return Checkpoint(newest, steps[newest], max(0.0, disk_time(run.path) - saved))


def age(path: Path, told: float) -> float:
    """Return the seconds since a file was written, by the clock of its disk: the node that wrote it may have another time than we.

    Args:
        told: the time in the file, by the clock of that node. It counts for a file that was copied, so that it is days older.
    """
    try:
        written, now = path.stat().st_mtime, disk_time(path.parent)
    except OSError:
        written, now = told, time.time()
    return max(0.0, now - written if abs(written - told) < DAY_S else time.time() - told)


def nodes(run: RunDir, info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the side processes of the newest attempt's nodes have written last, by host."""
    hosts = info.get("hosts")
    known = hosts if isinstance(hosts, list) else []
    named = {h: run.path / "monitor" / f"{h}.json" for h in known if _is_name(h)}
    read = {host: read_json(path) for host, path in named.items()}
    return {host: {**content, **_age(named[host], content)} for host, content in read.items() if content}


def _age(path: Path, content: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds since a node's newest sample, by the key `age_seconds`; nothing if it has none."""
    sample = content.get("sample")
    told = _number(sample.get("time")) if isinstance(sample, dict) else None
    return {} if told is None else {"age_seconds": age(path, told)}


def overrides(run: RunDir) -> dict[str, str]:
    """What was typed for the run, by key."""
    try:
        lines = read_text(run.overrides).splitlines()
    except (OSError, ValueError):
        return {}
    return {key.lstrip("+~"): value for key, sign, value in (line.partition("=") for line in lines) if sign}


def config(run: RunDir) -> dict[str, Any]:
    """config.yaml as it is written; empty if it can't be read."""
    try:
        content = yaml.safe_load(read_text(run.config))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def curve(run: RunDir, metric: str) -> list[tuple[int, float]]:
    """Step and value of each row of metrics.csv that has the metric."""
    try:
        rows = [*csv.DictReader(read_text(run.metrics_csv).splitlines())]
        return [(int(row["step"]), float(row[metric])) for row in rows if row.get(metric)]
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return []


def _metrics(content: Mapping[str, Any]) -> dict[str, float | None]:
    found = content.get("metrics")
    named = found.items() if isinstance(found, dict) else ()
    return {name: _number(value) for name, value in named if value is None or _number(value) is not None}


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None  # type: ignore[arg-type]


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _moment(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _is_name(host: object) -> bool:
    return isinstance(host, str) and host not in (*NOT_HOSTS, "") and "/" not in host
