"""Reports as one JSON document."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from train_anywhere.files.plain_json import dumps
from train_anywhere.slurm.status.run_status import Report, differing
from train_anywhere.slurm.status.sources.gather import Gathered


def document(gathered: Gathered) -> str:
    """{"runs": [...], "differing": [keys in which they differ], "next", "notes", "trouble"}; nan and inf are null."""
    content = {
        "runs": [plain(one(report)) for report in gathered.reports],
        "differing": differing(gathered.reports),
        "next": list(gathered.next),
        "notes": list(gathered.notes),
        "trouble": list(gathered.trouble),
    }
    return dumps(content)


def one(report: Report) -> dict[str, Any]:
    """The fields of `Report`, and whether the run may still train."""
    return {**asdict(report), "alive": report.alive}


def plain(value: Any) -> Any:
    """The same with paths as text, at any depth."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
