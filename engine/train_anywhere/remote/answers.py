"""The only reader of what hosts answer: checked and typed, since a host may have another version, or belong to someone else."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from train_anywhere.errors import SubmitError
from train_anywhere.files.atomic import loads
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.runs.facts import RecordedProgress
from train_anywhere.runs.folder import Check, fits, is_integer, is_string, is_string_list
from train_anywhere.slurm.status.gather import Report

T = TypeVar("T")


REPORT: dict[str, Check] = {
    **dict.fromkeys(("id", "name", "path", "state", "written", "trouble"), is_string),
    **dict.fromkeys(
        ("started", "took"),
        lambda v: isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < 1e11,
    ),
    "overrides": lambda value: isinstance(value, Mapping) and is_string_list([*value.values()]),
    "progress": lambda value: isinstance(value, Mapping) and fits(value, PROGRESS),
    "best": lambda value: isinstance(value, list) and [*map(type, value)] in ([str, float], [str, int]),
}
"""Checks of what a report of `jobs.py status --json` and `list --json` has."""

OPTIONAL = {"started", "took", "best"}
"""What may be null in a report."""

PROGRESS: dict[str, Check] = {"step": is_integer, "steps": is_integer}


def read_reports(host: str, answer: str) -> list[Report]:
    """Return the runs that `jobs.py status --json` or `list --json` has printed on a host. Raises SubmitError."""
    return _read(host, answer, "{", lambda content: [_report(run) for run in content["runs"]])


def _report(run: Mapping[str, Any]) -> Report:
    known = {key: run[key] for key in REPORT}
    path, missing = Path(known["path"]), {key for key in REPORT if known[key] is None} - OPTIONAL
    if missing or not fits(known, REPORT) or path.parts[-2:] != (known["name"], known["id"]):
        raise ValueError(f"it names the run {known}")
    progress = RecordedProgress(**{key: known["progress"].get(key) for key in PROGRESS})
    best = known["best"] and (known["best"][0], float(known["best"][1]))
    return Report(**{**known, "path": path, "progress": progress, "best": best})


def read_prepared(host: str, answer: str) -> tuple[str, list[str]]:
    """Return what `run_copies.prepare` has printed on a host: the project's folder and the starts of a run. Raises SubmitError."""

    def read(content: Any) -> tuple[str, list[str]]:
        folder, starts = content
        if not (is_string(folder) and folder.startswith("/") and is_string_list(starts)):
            raise ValueError("it names no folder")
        return folder, starts

    return _read(host, answer, "[", read)


def _read(host: str, answer: str, start: str, read: Callable[[Any], T]) -> T:
    """Return what `read` makes of the JSON in an answer, from its first bracket. Raises SubmitError if it is of another form."""
    try:
        return read(loads(answer[answer.index(start) :]))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SubmitError(
            f"{host}: its answer can't be read ({one_line(repr(error))[:300]}); `python src/train.py on={host} dry_run=true` sends it this "
            "version."
        ) from error
