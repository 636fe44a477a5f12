"""Compare two runs: configuration, code, environment and results, as lines for a terminal."""

import hashlib
import math
import re
from typing import Any

from train_anywhere.config.keys import as_typed, flatten
from train_anywhere.runs.facts import curves
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import read_frozen

MISSING = "-"
"""The value of a run that does not have a key."""


def compare_runs(first: RunDir, second: RunDir, width: int | None = None) -> list[str]:
    """Return a table of all that differs between two runs, by section. Raises CheckpointError: a file of a run is damaged.

    Values too long for `width` columns are on separate lines; None: nothing is broken.
    """
    with_code = all((run.path / "code").is_dir() for run in (first, second))
    one, other = describe(first, with_code), describe(second, with_code)
    header = ("", first.id, second.id)
    rows, sections = [header], dict[str, list[tuple[str, str, str]]]()
    for title, known in one.items():
        pairs = ((k, known.get(k, MISSING), other[title].get(k, MISSING)) for k in known | other[title])
        sections[title] = [(k, a, b) for k, a, b in pairs if a != b]
        rows += sections[title]
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
    info, code = run.read_info(), {"commit": MISSING}
    versions, data = (
        value if isinstance(value := info.get(key), dict) else {} for key in ("versions", "data")
    )
    if info.get("commit"):
        code["commit"] = f"{str(info['commit'])[:12]}{' (changed)' if info.get('dirty') else ''}"
    for path in sorted(p for p in (run.path / "code").rglob("*") if with_code and p.is_file()):
        content = path.read_bytes()
        digest = f"{len(content.splitlines())} lines, sha256 {hashlib.sha256(content).hexdigest()[:8]}"
        code[str(path.relative_to(run.path / "code"))] = digest
    settings = {key: as_typed(value) for key, value in flatten(read_frozen(run)).items()}
    around = {key: info.get(key) for key in ("cluster", "device", "world_size", "hosts")} | versions
    results = {key: _shown(info.get(key)) for key in ("state", "step")}
    for name, points in curves(run.metrics_csv).items():
        if known := [value for _, value in points if value == value]:
            word, best = ("lowest", min(known)) if "loss" in name else ("highest", max(known))
            results[name] = f"{known[-1]:.4g}{f', {word} {best:.4g}' if best != known[-1] else ''}"
    left_out = re.compile(r"paths\.|resume|.*\._check_$")  # they do not affect what is trained
    return {
        "Configuration": {key: value for key, value in settings.items() if not left_out.match(key)},
        "Code": code,
        "Environment": {key: _shown(value) for key, value in around.items()},
        "Data": {name: str(data[name]) for name in ("index", "folder", "samples") if name in data},
        "Results": results,
    }


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return MISSING if value is None else str(value)
