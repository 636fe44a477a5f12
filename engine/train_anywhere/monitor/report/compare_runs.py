"""Compare two runs: configuration, code, environment and results, as lines for a terminal."""

import hashlib
import math
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
    with_code = all((run.path / "code").is_dir() for run in (first, second))
    one, other = describe(first, with_code), describe(second, with_code)
    sections = {
        title: [
            (k, a, b)
            for k in known | other[title]
            if (a := known.get(k, MISSING)) != (b := other[title].get(k, MISSING))
        ]
        for title, known in one.items()
    }
    header = ("", first.id, second.id)
    rows = [header, *(row for section in sections.values() for row in section)]
    names = max(len(name) for name, _, _ in rows)
    room = math.inf if width is None else max(len(first.id), len(second.id), (width - names - 6) // 2)
    values = max(len(value) for _, value, _ in rows if len(value) <= room)

    def line(name: str, value: str, other: str) -> str:
        if max(len(value), len(other)) > room:
            return f"  {name}\n      {value}\n      {other}"
        return f"  {name:<{names}}  {value:<{values}}  {other}".rstrip()

    lines = [line(*header)]
    for title, section in sections.items():
        lines += [title, *(line(*row) for row in section)] if section else [f"{title}: no difference"]
    return lines


def describe(run: RunDir, with_code: bool) -> dict[str, dict[str, str]]:
    """Return what is compared of a run, by section and key. Raises CheckpointError."""
    info = run.read_info()
    versions, data = (
        value if isinstance(value := info.get(key), dict) else {} for key in ("versions", "data")
    )
    commit = (
        f"{str(info['commit'])[:12]}{' (changed)' if info.get('dirty') else ''}"
        if info.get("commit")
        else MISSING
    )
    files = sorted(p for p in (run.path / "code").rglob("*") if with_code and p.is_file())
    results = {key: _shown(info.get(key)) for key in ("state", "step")}
    for name, points in curves(run.metrics_csv).items():
        if known := [value for _, value in points if value == value]:
            word, best = ("lowest", min(known)) if "loss" in name else ("highest", max(known))
            results[name] = f"{known[-1]:.4g}{f', {word} {best:.4g}' if best != known[-1] else ''}"
    return {
        "Configuration": {
            key: as_typed(value)
            for key, value in flatten(read_frozen(run)).items()
            if not (key.startswith(LEFT_OUT) or key.endswith("._check_"))
        },
        "Code": {
            "commit": commit,
            **{str(p.relative_to(run.path / "code")): _digest(p.read_bytes()) for p in files},
        },
        "Environment": {
            key: _shown(value)
            for key, value in (
                {k: info.get(k) for k in ("cluster", "device", "world_size", "hosts")} | versions
            ).items()
        },
        "Data": {name: str(data[name]) for name in ("index", "folder", "samples") if name in data},
        "Results": results,
    }


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return MISSING if value is None else str(value)


def _digest(content: bytes) -> str:
    return f"{len(content.splitlines())} lines, sha256 {hashlib.sha256(content).hexdigest()[:8]}"
