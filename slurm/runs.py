"""Find runs by what a user has at hand: a folder, a run id, a job id, the id of a sweep, or nothing (the newest)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm import queue
from slurm.scheduler import SCRIPT
from src.errors import SubmitError
from src.rundir import RunDir


@dataclass(frozen=True)
class Submitted:
    """A run that was submitted.

    Attributes:
        run: its folder.
        member: its number in the array of a sweep; None where it is alone.
        script: the batch script, shared by the members of a sweep.
        job_ids: all jobs it had, oldest first.
    """

    run: RunDir
    member: int | None
    script: Path
    job_ids: tuple[str, ...]

    @property
    def scheduler(self) -> str:
        """slurm or pbs."""
        return next(kind for kind, name in SCRIPT.items() if name == self.script.name)

    def logs(self) -> list[Path]:
        """Output and errors of the newest job, as far as they exist."""
        for job_id in reversed(self.job_ids):
            number = re.sub(r"\D.*", "", job_id)
            found = [
                p
                for p in self.run.path.glob(f"*-{number}*.*")
                if re.fullmatch(r"(slurm|pbs)-\d+\S*\.(out|err)", p.name)
            ]
            if found:
                return sorted(found, reverse=True)  # .out first
        return []


def find(name: str | None, results: Path) -> list[Submitted]:
    """The runs that `name` means: one, or all members of a sweep.

    Args:
        name: a run folder, a run id, a job id, the id of a sweep; None is the newest run.
        results: where run folders are.

    Raises:
        SubmitError: where there is none.
    """
    if name is None:
        name = str(results / "latest")
    folders = _folders(name, results)
    if not folders:
        raise SubmitError(
            f"no run is called '{name}' below {results}; give a run folder, a run id or a job id (--results names another folder)."
        )
    runs = [_submitted(f) for f in folders]
    if not any(runs):
        raise SubmitError(f"{folders[0]} was not submitted to a scheduler; it ran on this machine.")
    return [r for r in runs if r]


def _folders(name: str, results: Path) -> list[Path]:
    if re.fullmatch(r"\d+(_\d+)?", name):
        return [p.parent for p in sorted(results.glob("*/*/jobs.txt")) if _has_job(p, name)]
    path = Path(name) if "/" in name else next(iter(results.glob(f"*/{name}")), results / name)
    path = path.resolve()
    if (path / "config.yaml").is_file():
        return [path]
    members = [
        p for p in path.parent.glob(f"{path.name}-*") if re.fullmatch(r"\d+", p.name[len(path.name) + 1 :])
    ]
    return sorted(members, key=lambda p: int(p.name.rpartition("-")[2]))


def _has_job(jobs: Path, job_id: str) -> bool:
    return any(line == job_id or line.startswith(f"{job_id}_") for line in jobs.read_text().split())


def _submitted(folder: Path) -> Submitted | None:
    for base in (folder, folder.with_name(folder.name.rpartition("-")[0])):
        for script in (base / name for name in SCRIPT.values()):
            if script.is_file():
                member = int(folder.name.rpartition("-")[2]) if base != folder else None
                jobs = folder / "jobs.txt"
                return Submitted(
                    RunDir(folder), member, script, tuple(jobs.read_text().split() if jobs.is_file() else ())
                )
    return None


def states(runs: Sequence[Submitted]) -> dict[str, tuple[str, dict[str, Any]]]:
    """By run id: one word for where it stands, and its run.json.

    While a job lives, the scheduler knows best; then run.json does. A run whose job is gone though it never ended is `lost`.
    """
    by_job: dict[str, str] = {}
    for kind in {r.scheduler for r in runs}:
        by_job |= queue.states(kind, [i for r in runs if r.scheduler == kind for i in r.job_ids])
    return {r.run.id: _state(r, by_job) for r in runs}


def _state(run: Submitted, by_job: dict[str, str]) -> tuple[str, dict[str, Any]]:
    info = run.run.info()
    words = [by_job[i] for i in run.job_ids if i in by_job]
    alive = [w for w in words if queue.alive(w)]
    if alive:
        return ("running" if "RUNNING" in alive else alive[0].lower()), info
    state = str(info.get("state", "lost"))
    if state in ("queued", "running"):  # the trainer had no time to write its end
        state = words[-1].lower() if words and words[-1] != "COMPLETED" else "lost"
    return state, info
