"""Format reports as one JSON document."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from train_anywhere.files.plain_json import dumps
from train_anywhere.slurm.status.run_status import Report, differing_keys
from train_anywhere.slurm.status.sources.gather import RunReports


def to_json(gathered: RunReports) -> str:
    """Return {"runs": [...], "differing": [keys whose values differ], "next", "notes", "trouble"}; nan and inf are null."""
    content = {
        "runs": [to_plain(report_fields(report)) for report in gathered.reports],
        "differing": differing_keys(gathered.reports),
        "next": list(gathered.next),
        "notes": list(gathered.notes),
        "trouble": list(gathered.trouble),
    }
    return dumps(content)


def report_fields(report: Report) -> dict[str, Any]:
    """Return the fields of a report, and whether its run may still train."""
    return {**asdict(report), "alive": report.alive}


def to_plain(value: Any) -> Any:
    """Return the value with strings in place of paths, at any depth."""
    if isinstance(value, dict):
        return {key: to_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
