"""Sums over the batches of a long run, in a JSON file that processes add to."""

import fcntl
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LEAST = 20
"""How often each hook and argument is drawn at least in a long run on one rank."""

Sums = dict[str, dict[str, Any]]
"""Number of programs, draws and needed rows by the kind of run: one rank, stops or ranks."""


def add_batch(
    file: Path | None, kind: str, programs: int, draws: Mapping[str, int], rows: Iterable[str]
) -> Sums:
    """Add a batch to the sums in a file and return them. Without a file return the batch's sums."""
    if file is None:
        return {kind: {"programs": programs, "draws": dict(draws), "rows": dict(Counter(rows))}}
    with file.open("a+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        sums: Sums = json.loads(stream.read() or "{}")
        total = sums.setdefault(kind, {"programs": 0, "draws": {}, "rows": {}})
        total["programs"] += programs
        total["draws"] = dict(Counter(total["draws"]) + Counter(draws))
        total["rows"] = dict(Counter(total["rows"]) + Counter(rows))
        stream.truncate(0)
        json.dump(sums, stream, indent=1)
    return sums


def find_problems(sums: Sums, long: int, names: Iterable[str], table: Iterable[str]) -> list[str]:
    """Return names drawn too rarely and unused rows, or nothing before the run is long.

    `long` is the number of programs of a long run on one rank. A row fails only a run that also has stops and ranks,
    which some rows are for.
    """
    draws = sums.get("alone", {"programs": 0})
    if draws["programs"] < long:
        return []
    rare = [f"{name} is drawn {draws['draws'].get(name, 0)} times" for name in names]
    problems = [line for line, name in zip(rare, names, strict=True) if draws["draws"].get(name, 0) < LEAST]
    if {"alone", "stops", "ranks"} <= sums.keys():
        needed = {row for total in sums.values() for row in total["rows"]}
        problems += [f"the row {row} of the table is never needed" for row in table if row not in needed]
    return problems
