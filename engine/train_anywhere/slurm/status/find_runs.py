"""Find runs by folder, run id, job id or sweep id, and query the scheduler for their states."""

import dataclasses
import errno
import glob
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from train_anywhere.errors import SubmitError
from train_anywhere.files.atomic import read_text
from train_anywhere.files.typed_paths import resolve_as_typed
from train_anywhere.runs.attempts import describe_state
from train_anywhere.runs.folder import JOBS, RunDir
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.scheduler.client import QUEUE, SCRIPT, UNCLEAR
from train_anywhere.slurm.submission.exclusions import describe_special


@dataclass(frozen=True)
class RunEntry:
    """A run and its jobs, as its folder records them.

    Attributes:
        folder: the run folder.
        member: number of the run in the array of a sweep; None for a single run.
        scheduler: slurm or pbs; None for a run of this machine.
        script: the batch script, which the members of a sweep share; None if there is none.
        job_ids: ids of all jobs of the run, oldest first.
        unclear: whether there may be a job whose id is not known.
        trouble: why the jobs are not known; empty if they are known.
    """

    folder: RunDir
    member: int | None
    scheduler: str | None
    script: Path | None
    job_ids: tuple[str, ...]
    unclear: bool = False
    trouble: str = ""

    def logs(self) -> list[Path]:
        """Return the output and error files of the newest job that has any."""
        for job_id in reversed(self.job_ids):
            number = re.sub(r"\D.*", "", job_id)
            pattern = rf"(slurm|pbs)-{number}(\D\S*)?\.(out|err)"
            named = [p for p in self.folder.path.iterdir() if re.fullmatch(pattern, p.name)]
            found = [p for p in named if p.is_file() or p.is_dir()]  # opening a FIFO would wait for a writer
            if found:
                return sorted(found, reverse=True)  # .out first
        return []


def find(name: str | None, results: Path) -> list[RunEntry]:
    """Find a run by its folder, run id or job id, or all members of a sweep by its id; by default the newest run.

    Raises:
        SubmitError: there is no such run.
    """
    try:
        if name is None and not (results / "latest").is_dir():  # such as in a copy without links
            return find_all(results)[:1]
        folders = _folders(name, results) if name is not None else [resolve_as_typed(results / "latest")]
        found = [read_entry(f) for f in folders]
    except ValueError:  # a null character in the name
        found = []
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise SubmitError(f"no run is called '{name}': no folder can have such a long name.") from None
        where = error.filename or name or results / "latest"
        raise SubmitError(f"{where} can't be read: {error.strerror}.") from None
    if not found:
        raise SubmitError(
            f"no run is called '{name}' below {results}; give a run folder, a run id or a job id (--results names another folder)."
        )
    return found


def find_all(results: Path) -> list[RunEntry]:
    """Find all runs below `results`, newest first.

    Raises:
        SubmitError: there is no run, or the folder can't be read.
    """
    try:
        folders = [path.parent for path in results.glob("*/*/config.yaml")]
        found = [read_entry(folder) for folder in sorted(folders, key=_creation_order, reverse=True)]
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or "its links form a loop"
        raise SubmitError(f"{results} can't be read: {why}.") from None
    if not found:
        raise SubmitError(f"there is no run in {results} yet (--results names another folder).")
    return found


def _creation_order(folder: Path) -> tuple[str, int]:
    """Return a sort key: the time in the run id, or of config.yaml in a renamed folder, then the number in a sweep."""
    when = re.match(r"\d{8}-\d{6}", folder.name)
    written = time.localtime((folder / "config.yaml").stat().st_mtime)
    member = folder.name.rpartition("-")[2]
    number = int(member) if member.isdecimal() and len(member) < 4 else 0
    return when[0] if when else time.strftime("%Y%m%d-%H%M%S", written), -number


def job_ids(run: RunDir) -> tuple[str, ...]:
    """Return the ids of all jobs in jobs.txt, with `UNCLEAR` for a job whose id is not known.

    Raises:
        SubmitError: the file contains something else, so the jobs are not known.
    """
    path = run.jobs
    try:
        words = _words(path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise SubmitError(f"{path} can't be read: {error.strerror}.") from None
    for word in words:
        if word != UNCLEAR and not re.fullmatch(queue.JOB_ID, word):
            raise SubmitError(
                f"{path} has {word[:40]!a} in it, which is not a job id: correct or delete that line."
            )
    return tuple(dict.fromkeys(words))


def query_scheduler(runs: Sequence[RunEntry]) -> tuple[list[RunEntry], queue.JobStates]:
    """Query the states of all jobs of some runs at once; returns the runs, with unrecorded jobs, and the states.

    Raises:
        SchedulerError: the scheduler does not answer.
    """
    runs = [with_unrecorded_jobs(r) for r in runs]
    states: dict[str, str] = {}
    gap = ""
    for kind in sorted({r.scheduler for r in runs if r.scheduler}):
        known = queue.query_states(kind, [i for r in runs if r.scheduler == kind for i in r.job_ids])
        states |= known.states
        gap = gap or known.gap
    return runs, queue.JobStates(states, gap)


def with_unrecorded_jobs(run: RunEntry) -> RunEntry:
    """Return the run with the jobs that Slurm's queue has of its script, if the answer of sbatch was lost.

    Raises:
        SchedulerError: Slurm does not answer.
    """
    if not run.unclear or run.scheduler != "slurm":
        return run
    more = [
        i
        for i in queue.find_jobs_of_script(str(run.script))
        if run.member is None or i.endswith(f"_{run.member}")
    ]
    return dataclasses.replace(run, job_ids=tuple(dict.fromkeys([*run.job_ids, *more])))


def refuse_unclear(run: RunEntry) -> None:
    """Refuse a run that may have a job whose id is not known. Only Slurm's queue names the script of each job.

    Raises:
        SubmitError: there may be such a job.
    """
    if run.unclear and run.scheduler != "slurm":
        raise SubmitError(
            f"whether an earlier submission of this run is queued is not known: look at `{QUEUE[str(run.scheduler)]}`. "
            f"If it is, cancel it; then delete the line {UNCLEAR} of {run.folder.jobs}."
        )


def read_state(run: RunEntry, known: queue.JobStates) -> tuple[str, dict[str, Any]]:
    """Return the state of a run in one word, and its run.json.

    While a job may still run, the scheduler's state counts; afterwards that of run.json. A run whose job disappeared before it
    recorded its end is `lost`, or `unknown` if the accounting does not answer. A run that was cancelled and saved a checkpoint is
    `cancelled`.

    Raises:
        CheckpointError: run.json is damaged.
    """
    info = run.folder.read_info()
    own_states = known.select(run.job_ids)
    if alive := [*known.active(run.job_ids).values()]:
        return ("running" if "RUNNING" in alive else alive[0].lower()), info
    word = str(info.get("state", "lost"))
    newest = [*known.select(run.job_ids[-1:]).values()]
    if word == "preempted" and newest[-1:] == [
        "CANCELLED"
    ]:  # a rank can't tell a cancellation from a preemption
        return "cancelled", info
    if word not in ("queued", "running"):
        return describe_state(word, info), info
    if newest and newest[-1] != "COMPLETED":  # training had no time to record its end
        return newest[-1].lower(), info
    return ("unknown" if known.gap or (run.unclear and not own_states) else "lost"), info


def _folders(name: str, results: Path) -> list[Path]:
    if re.fullmatch(r"[0-9]+(_[0-9]+)?", name):
        found = [p.parent for p in sorted(results.glob(f"*/*/{JOBS}")) if _has_job(p, name)]
        if found:
            return found
    path = Path(name)
    if "/" not in name and not (path / "config.yaml").is_file():
        path = next(iter(results.glob(f"*/{glob.escape(name)}")), results / name) if name else results
    path = resolve_as_typed(path)
    with suppress(FileNotFoundError, NotADirectoryError):
        path.stat()  # raises for links that form a loop
    if (path / "config.yaml").is_file():
        return [path]
    members = [
        p for p in path.parent.glob(f"{glob.escape(path.name)}-*") if _member(p, path.name) is not None
    ]
    return sorted(members, key=lambda p: int(p.name.rpartition("-")[2]))


def _member(folder: Path, sweep: str) -> int | None:
    match = re.fullmatch(re.escape(sweep) + r"-([0-9]{1,9})", folder.name)
    return int(match[1]) if match and (folder / "config.yaml").is_file() else None


def _has_job(jobs: Path, job_id: str) -> bool:
    try:
        return any(word == job_id or word.startswith(f"{job_id}_") for word in _words(jobs))
    except OSError:
        return False


def _words(jobs: Path) -> list[str]:
    """Return the entries of jobs.txt. Raises OSError, also for a FIFO, whose reader would wait for a writer."""
    if odd := describe_special(jobs.stat().st_mode):
        raise OSError(errno.EINVAL, odd)
    return jobs.read_text(errors="replace").split()


def read_entry(folder: Path) -> RunEntry:
    """Return the run in a folder, with its script and jobs."""
    run, sweep = RunDir(folder), folder.name.rpartition("-")[0]
    bases = [folder] + ([folder.with_name(sweep)] if sweep and _member(folder, sweep) is not None else [])
    scripts = [base / name for base in bases for name in SCRIPT.values() if (base / name).is_file()]
    script = scripts[0] if scripts else None
    own = script is not None and script.parent == folder
    member = _member(folder, sweep) if sweep and not own and folder.with_name(sweep).is_dir() else None
    kind = next((k for k, name in SCRIPT.items() if script and script.name == name), None)
    try:
        ids = job_ids(run)
        kind = kind or (_scheduler(run) if ids else None)
    except SubmitError as error:
        return RunEntry(run, member, kind, script, (), trouble=str(error))
    return RunEntry(run, member, kind, script, tuple(i for i in ids if i != UNCLEAR), UNCLEAR in ids)


def _scheduler(run: RunDir) -> str:
    """Return the scheduler of a run without a script, from its configuration."""
    try:
        kind = yaml.safe_load(read_text(run.config))["cluster"]["scheduler"]
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        kind = None
    if kind not in SCRIPT:
        raise SubmitError(
            f"{run.path} has jobs ({run.jobs}) but neither a batch script nor a readable config.yaml: "
            "which scheduler has them is not known."
        )
    return str(kind)
