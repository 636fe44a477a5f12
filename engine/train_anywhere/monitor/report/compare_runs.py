"""Compare two runs: configuration, code, environment and results, as lines for a terminal."""

import filecmp
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from train_anywhere.config.keys import as_typed, flatten
from train_anywhere.runs.facts import curves
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import read_frozen

LEFT_OUT, MISSING = ("paths.", "resume"), "-"
"""Starts of keys that do not affect what is trained, and the value of a run that does not have a key."""


def compare_runs(first: RunDir, second: RunDir, width: int | None = None) -> list[str]:
    """Return a table of all that differs between two runs, by section. Raises CheckpointError: a file of a run is damaged.

    Values too long for `width` columns are on separate lines; None: nothing is broken.
    """
    runs = (first, second)
    infos = [run.read_info() for run in runs]
    sections = {
        "Configuration": _differences(*map(_settings, runs)),
        "Code": [*_code(first, second, *map(_commit, infos))],
        "Environment": _differences(*map(_environment, infos)),
        "Data": _differences(*map(_data, infos)),
        "Results": _differences(*map(_results, runs, infos)),
    }
    header = ("", first.id, second.id)
    rows = [header, *(row for section in sections.values() for row in section)]
    names = max(len(name) for name, _, _ in rows)
    room = math.inf if width is None else max(len(first.id), len(second.id), (width - names - 6) // 2)
    values = max(len(value) for _, value, _ in rows if len(value) <= room)

    def line(cells: tuple[str, str, str]) -> str:
        name, one, other = cells
        if max(len(one), len(other)) > room:
            return f"  {name}\n      {one}\n      {other}"
        return f"  {name:<{names}}  {one:<{values}}  {other}".rstrip()

    lines = [line(header)]
    for title, section in sections.items():
        lines += [title, *(line(row) for row in section)] if section else [f"{title}: no difference"]
    return lines


def _differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[tuple[str, str, str]]:
    keys = dict.fromkeys([*first, *second])
    pairs = ((key, first.get(key, MISSING), second.get(key, MISSING)) for key in keys)
    return [pair for pair in pairs if pair[1] != pair[2]]


def _settings(run: RunDir) -> dict[str, str]:
    flat = flatten(read_frozen(run))
    return {
        key: as_typed(value)
        for key, value in flat.items()
        if not (key.startswith(LEFT_OUT) or key.endswith("._check_"))
    }


def _environment(info: Mapping[str, Any]) -> dict[str, str]:
    facts = {key: info.get(key) for key in ("cluster", "device", "world_size", "hosts")}
    versions = info.get("versions")
    return {k: _shown(v) for k, v in {**facts, **(versions if isinstance(versions, dict) else {})}.items()}


def _data(info: Mapping[str, Any]) -> dict[str, str]:
    data = info.get("data")
    data = data if isinstance(data, dict) else {}
    return {name: str(data[name]) for name in ("index", "folder", "samples") if name in data}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return MISSING if value is None else str(value)


def _code(first: RunDir, second: RunDir, *commits: str) -> Iterator[tuple[str, str, str]]:
    """Yield the commits if they differ, and the files that differ between the two copies of the code, if both runs have one."""
    if commits[0] != commits[1]:
        yield "commit", commits[0], commits[1]
    one, other = first.path / "code", second.path / "code"
    if not (one.is_dir() and other.is_dir()):
        return
    for name in sorted(
        {str(p.relative_to(copy)) for copy in (one, other) for p in copy.rglob("*") if p.is_file()}
    ):
        sizes = _lines(one / name), _lines(other / name)
        if MISSING in sizes or not filecmp.cmp(one / name, other / name, shallow=False):
            yield name, *sizes


def _commit(info: Mapping[str, Any]) -> str:
    commit = info.get("commit")
    return f"{str(commit)[:12]}{' (changed)' if info.get('dirty') else ''}" if commit else MISSING


def _lines(path: Path) -> str:
    return f"{len(path.read_bytes().splitlines())} lines" if path.is_file() else MISSING


def _results(run: RunDir, info: Mapping[str, Any]) -> dict[str, str]:
    """Return the last value of each metric in metrics.csv, and its lowest (losses) or highest value if that is another."""
    shown = {key: _shown(info.get(key)) for key in ("state", "step")}
    for name, points in curves(run.metrics_csv).items():
        values = [value for _, value in points if value == value]
        if values:
            best = min(values) if "loss" in name else max(values)
            extreme = f", {'lowest' if 'loss' in name else 'highest'} {best:.4g}"
            shown[name] = f"{values[-1]:.4g}{extreme if best != values[-1] else ''}"
    return shown
