"""Find runs by folder, run id, job id or sweep id, read their states, and check whose jobs a run folder names."""

import errno
import glob
import os
import re
import shlex
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from train_anywhere.errors import SubmitError
from train_anywhere.files import ROOT, WORK
from train_anywhere.files.root import resolve_as_typed
from train_anywhere.runs import lock
from train_anywhere.runs.attempts import describe_state
from train_anywhere.runs.facts import read_config
from train_anywhere.runs.folder import JOBS, RunDir
from train_anywhere.runs.reopen.trust import is_recorded
from train_anywhere.runs.summary import display_path, is_program, resume_command, train_command
from train_anywhere.slurm.scheduler import client, queue
from train_anywhere.slurm.scheduler.client import QUEUE, SCRIPT, UNCLEAR
from train_anywhere.slurm.submission.snapshot import describe_special

FORGOTTEN_S = 300.0
"""Seconds after which a submission that Slurm's queue does not list has not reached it: sbatch itself retries for two minutes."""

STARTING_S = 120.0
"""Seconds within which a run that no process trains yet counts as starting."""


@dataclass(frozen=True)
class RunEntry:
    """A run and its jobs, as its folder records them.

    Attributes:
        member: number of the run in the array of a sweep; None for a single run.
        scheduler: slurm or pbs; None for a run of this machine.
        script: the batch script, which the members of a sweep share; None if there is none.
        job_ids: ids of all jobs of the run, oldest first.
        unclear: whether there may be a job whose id is not known.
    """

    folder: RunDir
    member: int | None
    scheduler: str | None
    script: Path | None
    job_ids: tuple[str, ...]
    unclear: bool = False
    trouble: str = ""

    def logs(self) -> list[Path]:
        """Return the output and error files of the newest job that has any, or the local log."""
        if self.scheduler is None:
            return [self.folder.log] if self.folder.log.is_file() else []
        for job_id in reversed(self.job_ids):
            pattern = rf"(slurm|pbs)-{_number(job_id)}(\D\S*)?\.(out|err)"
            named = [p for p in self.folder.path.iterdir() if re.fullmatch(pattern, p.name)]
            found = [p for p in named if p.is_file() or p.is_dir()]  # opening a FIFO would wait for a writer
            if found:
                return sorted(found, reverse=True)  # .out first
        return []


def find(name: str | None, results: Path) -> list[RunEntry]:
    """Find a run by folder, id or job, or a sweep's members; by default the newest. Raises SubmitError."""
    try:
        if name is None and not (results / "latest").is_dir():
            return find_all(results, 1)
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
        way = "--results names another folder"
        if name and "/" not in name and (results / name).is_dir():
            way = f"`jobs.py list --name {name}` lists the runs of that name"
        raise SubmitError(
            f"no run is called '{name}' below {results}; give a run folder, a run id or a job id ({way})."
        )
    return found


def jobs_command(verb: str, name: str, results: Path) -> str:
    """Return `python src/jobs.py VERB NAME`, with `--results` if needed."""
    there = "" if results == WORK / "results" else f" --results {shlex.quote(display_path(results))}"
    return f"{train_command('jobs.py')} {verb} {shlex.quote(name)}{there}"


def strip_root(after: str) -> str:
    """Return a run id without the project folder, which the configuration adds to `after`."""
    path = Path(after)
    return path.name if path.parent == ROOT and not path.exists() else after


def find_all(results: Path, newest: int | None = None) -> list[RunEntry]:
    """Find all runs below `results`, or the newest ones, newest first. Raises SubmitError if there is none."""
    return [read_entry(folder) for folder in find_folders(results)[:newest]]


def find_folders(results: Path) -> list[Path]:
    """Find the folders of all runs below `results`, newest first. Raises SubmitError."""

    def order(folder: Path) -> tuple[str, int]:
        """Sort by the time in the run id, or of config.yaml, then by the number of a member."""
        member = re.search(r"-(\d{1,3})$", folder.name)
        number = -int(member[1]) if member else 0
        if when := re.match(r"\d{8}-\d{6}", folder.name):
            return when[0], number
        written = time.localtime((folder / "config.yaml").stat().st_mtime)
        return time.strftime("%Y%m%d-%H%M%S", written), number

    try:
        folders = [path.parent for path in results.glob("*/[!.]*/config.yaml")]
        found = sorted(folders, key=order, reverse=True)
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or "its links form a loop"
        raise SubmitError(f"{results} can't be read: {why}.") from None
    if not found:
        raise SubmitError(f"there is no run in {results} yet (--results names another folder).")
    return found


def query_scheduler(runs: Sequence[RunEntry], wait: bool = False) -> tuple[list[RunEntry], queue.JobStates]:
    """Return the runs with all their jobs, and the states of these. Raises SchedulerError without an answer."""
    runs = with_unrecorded_jobs(runs, wait)
    known = queue.JobStates()
    for kind in sorted({r.scheduler for r in runs if r.scheduler}):
        one = queue.query_states(kind, [i for r in runs if r.scheduler == kind for i in r.job_ids])
        known = queue.JobStates(known.states | one.states, known.gap or one.gap, known.waits | one.waits)
    return runs, known


def with_unrecorded_jobs(runs: Sequence[RunEntry], wait: bool = False) -> list[RunEntry]:
    """Return the runs with jobs whose submission was not recorded, by their logs and queue.

    A run stays unclear if there is no such job and it may still come. `wait` waits until Slurm would have listed the job of a
    submission that was killed.

    Raises SchedulerError: Slurm does not answer.
    """
    longest = client.LOOKUP_PAUSES_S[-1]
    end = time.monotonic() + (longest if wait else 0.0)
    while True:
        asked = any(run.unclear and run.scheduler == "slurm" for run in runs)
        jobs = queue.find_jobs() if asked else {}
        found = [_with_new_jobs(run, jobs) if run.unclear else run for run in runs]
        # a submission that did not record its end may still reach Slurm's queue
        pending = (run for run in found if run.unclear and run.scheduler == "slurm")
        pending = (run for run in pending if not run.folder.read_info().get("submission"))
        if time.monotonic() >= end or not any(_record_age(run) < longest for run in pending):
            return found
        time.sleep(1)


def _with_new_jobs(run: RunEntry, jobs: Mapping[str, Mapping[str, str]]) -> RunEntry:
    ending = "" if run.member is None else f"_{array_task(run)}"
    logs = (re.match(r"(?:slurm|pbs)-(\d+)\b.*out$", name) for name in sorted(os.listdir(run.folder.path)))
    queued = [i for i in jobs.get(os.path.realpath(str(run.script)), {}) if i.endswith(ending)]
    found = dict.fromkeys([*(log[1] + ending for log in logs if log), *queued])
    new = [i for i in found if _number(i) not in map(_number, run.job_ids)]
    gone = run.scheduler == "slurm" and _record_age(run) > FORGOTTEN_S
    return replace(run, job_ids=(*run.job_ids, *new), unclear=not (new or gone))


def array_task(run: RunEntry) -> int:
    """Return the number in the array that runs a member of a sweep: that of the first member in its job."""
    member, text = run.member or 0, run.script.read_text(errors="replace") if run.script else ""
    found = re.search(r"(?s)^#SBATCH --array=(\d+).* --members=(\d+)", text, re.MULTILINE)
    first, pack = map(int, found.groups()) if found else (0, 1)
    return member - (member - first) % pack


def _record_age(run: RunEntry) -> float:
    """Return the seconds since a submission was recorded. 0 for a run of another user."""
    status = os.stat(run.folder.jobs if run.folder.jobs.exists() else run.script or run.folder.path)
    return time.time() - status.st_mtime if status.st_uid == os.getuid() else 0.0


def _number(job_id: str) -> str:
    return re.sub(r"\D.*", "", job_id)


def refuse_unclear(run: RunEntry) -> None:
    """Raise SubmitError for a run that may have a job whose id is not known."""
    if run.unclear and run.scheduler != "slurm":
        raise SubmitError(
            f"whether an earlier submission of this run is queued is not known: look at `{QUEUE[str(run.scheduler)]}`. "
            f"If it is, cancel it; then delete the line {UNCLEAR} of {run.folder.jobs}."
        )


def read_state(run: RunEntry, known: queue.JobStates | None = None) -> tuple[str, str, dict[str, Any]]:
    """Return the state of a run in one word, its jobs or its process, and its run.json.

    While a job may still run, the scheduler's state counts; afterwards that of run.json. A run whose job or process disappeared before it
    recorded its end is `lost`, or `unknown` if the accounting does not answer. A run that was cancelled and saved a checkpoint is
    `cancelled`. The state of a job is empty if nothing is `known` of it.

    Raises CheckpointError: run.json is damaged.
    """
    info = run.folder.read_info()
    if run.scheduler is None:
        return *_process_state(run, describe_state(str(info.get("state", "lost")), info)), info
    jobs = " -> ".join([*run.job_ids, *"?"[: run.unclear or not run.job_ids]])
    return _job_state(run, info, known) if known else "", f"job {jobs} on {info.get('cluster')}", info


def _job_state(run: RunEntry, info: Mapping[str, Any], known: queue.JobStates) -> str:
    word, newest = str(info.get("state", "lost")), ["", *known.select(run.job_ids[-1:]).values()][-1]
    # the job of a member that has ended may run others
    ended = bool(info.get("pack")) and word in ("completed", "failed", "cancelled")
    if not ended and (alive := [*known.active(run.job_ids).values()]):
        return "running" if "RUNNING" in alive else alive[0].lower()
    # a rank can't distinguish a cancellation from a preemption
    if word == "preempted" and newest == "CANCELLED":
        return "cancelled"
    if word not in ("queued", "running"):
        return describe_state(word, info)
    if not run.unclear and newest not in ("", "COMPLETED"):  # training had no time to record its end
        return newest.lower()
    return "unknown" if run.unclear or known.gap else "lost"


def _process_state(run: RunEntry, word: str) -> tuple[str, str]:
    """Return the state of a run of this machine, and the process that trains."""
    who = find_process(run)[0] if word in ("queued", "running", "lost") else None
    if who != "":
        return word, who or ""
    with suppress(OSError):  # started or resumed a moment ago
        if word != "running" and time.time() - run.folder.config.stat().st_mtime < STARTING_S:
            return "starting", ""
    return "lost", ""  # its process had no time to record its end


def find_process(run: RunEntry) -> tuple[str, int | None]:
    """Return `process 7 on node1`, which trains, and its id if that is this machine. Empty if there is none."""
    holder = lock.read_holder(run.folder.path / "lock")
    here = holder is not None and holder["host"] == lock.identity()["host"]
    if holder is None or (here and lock.process_start(holder["pid"]) != holder["started"]):
        return "", None
    return f"process {holder['pid']} on {holder['host']}", int(holder["pid"]) if here else None


def stop_process(run: RunEntry) -> str:
    """Ask the process that trains in a run folder to save and stop, and return a message.

    Raises SubmitError: there is none, it is on another machine, or it is another user's.
    """
    word, who, _ = read_state(run)
    if word == "starting":
        raise SubmitError(f"{run.folder.id} is starting on this machine: try again in a moment.")
    if not who:
        raise SubmitError(f"{run.folder.id} ran on this machine and is {word}: there is nothing to cancel.")
    elsewhere = f"{run.folder.id} runs as {who}: stop it there with `kill {who.split()[1]}`, and it saves a checkpoint first."
    pid = find_process(run)[1]
    try:
        # a run folder of another user may name any process
        if pid is None or (run.folder.path / "lock").lstat().st_uid != os.getuid():
            raise SubmitError(elsewhere)
        os.kill(pid, signal.SIGTERM)
    except OSError as error:
        raise SubmitError(f"{elsewhere} ({error.strerror})") from None
    does = "asks the program to stop" if is_program(run.folder) else "saves a checkpoint and stops"
    return f"{run.folder.id}: process {pid} {does}."


def resume_message(run: RunEntry) -> str:
    """Return the message of `resubmit` for a run without a batch script."""
    why = "ran on this machine" if run.scheduler is None else "no longer has a batch script"
    return f"{run.folder.id} {why}; resume it with `{resume_command(run.folder)}`."


def refuse_other_jobs(
    run: RunEntry, job_ids: Sequence[str], consequence: str = "nothing was cancelled", command: str = ""
) -> None:
    """Refuse jobs not submitted from the run folder, unless recorded by this user.

    The message says with `consequence` what was not done, and with `command` how to do it, by default with the scheduler's cancel command.

    Raises SubmitError: jobs.txt names such a job. Raises SchedulerError: the scheduler does not answer.
    """
    above, base = os.path.realpath(run.folder.path.parent), (run.script or run.folder.config).parent.name
    own = {os.path.realpath(run.folder.path), os.path.join(above, base)}  # a sweep's members share a script
    if run.scheduler == "slurm":
        known = queue.query_scripts(queue.jobs_option(job_ids))
        scripts = {job_id: script for job_id, (_, script) in known.items() if job_id in job_ids}
    else:  # on PBS the output file, which is in the same folder
        paths = {i: queue.query_pbs_fields(i).get("Output_Path", "").partition("/")[2] for i in job_ids}
        scripts = {job_id: f"/{path}" for job_id, path in paths.items() if path}
    for job_id, script in scripts.items():
        inside = os.path.realpath(os.path.dirname(script)) in own
        if not inside and not is_recorded(run.folder.path, "job", job_id):
            name = queue.CANCEL[str(run.scheduler)]
            raise SubmitError(
                f"job {job_id} in {run.folder.jobs} was not submitted from that folder but as {script!r}, so {consequence}; "
                f"if you mean that job, use `{command or name} {queue.native_id(job_id)}`."
            )


def _folders(name: str, results: Path) -> list[Path]:
    found: list[Path] = []
    if re.fullmatch(r"[0-9]+(_[0-9]+)?", name):
        for jobs in sorted(results.glob(f"*/[!.]*/{JOBS}")):
            with suppress(OSError):
                if any(word == name or word.startswith(f"{name}_") for word in _words(jobs)):
                    found.append(jobs.parent)
        _refuse_several(f"job {name}", {(read_entry(p).script or p / JOBS).parent for p in found})
    if found:
        return found
    path = Path(name)
    if "/" not in name and name not in (".", "..") and not (path / "config.yaml").is_file():
        below = {p for p in results.glob(f"*/{glob.escape(name or '/')}") if not p.parent.is_symlink()}
        if (results / name / "config.yaml").is_file():  # such as `latest`
            below.add(results / name)
        _refuse_several(name, below)
        path = below.pop() if below else results / name
    path = resolve_as_typed(path)
    with suppress(FileNotFoundError, NotADirectoryError):
        path.stat()  # raises for links that form a loop
    if (path / "config.yaml").is_file():
        return [path]
    named = path.parent.glob(f"{glob.escape(path.name)}-*")
    members = [p for p in named if _member(p, path.name) is not None]
    return sorted(members, key=lambda p: int(p.name.rpartition("-")[2]))


def _refuse_several(name: str, folders: Collection[Path]) -> None:
    if len(folders) > 1:
        listed = ", ".join(display_path(path) for path in sorted(folders)[:5])
        raise SubmitError(f"{name} names {len(folders)} runs: {listed}; give one of these folders.")


def _member(folder: Path, sweep: str) -> int | None:
    number = folder.name.removeprefix(f"{sweep}-")
    known = number != folder.name and re.fullmatch("[0-9]{1,9}", number)
    return int(number) if known and (folder / "config.yaml").is_file() else None


def _words(jobs: Path) -> list[str]:
    """Return the entries of jobs.txt. Raises OSError, also for a FIFO."""
    if odd := describe_special(jobs.stat().st_mode):
        raise OSError(errno.EINVAL, odd)
    return jobs.read_text(errors="replace").split()


def read_entry(folder: Path) -> RunEntry:
    """Return the run in a folder, with its script and jobs."""
    run, sweep = RunDir(folder), folder.name.rpartition("-")[0]
    number = _member(folder, sweep) if sweep else None
    bases = [folder] if number is None else [folder, folder.with_name(sweep)]
    scripts = [(k, base / name) for base in bases for k, name in SCRIPT.items() if (base / name).is_file()]
    kind, script = scripts[0] if scripts else (None, None)
    own = script is not None and script.parent == folder
    member = number if not own and bases[-1].is_dir() else None
    ids, trouble = dict[str, None](), ""
    try:
        ids = dict.fromkeys(_words(run.jobs)) if os.path.lexists(run.jobs) else ids
        if wrong := [word for word in ids if word != UNCLEAR and not re.fullmatch(queue.JOB_ID, word)]:
            trouble = (
                f"{run.jobs} has {wrong[0][:40]!a} in it, which is not a job id: correct or delete that line."
            )
        elif ids and kind is None:  # a run without a script
            cluster = read_config(run).get("cluster")
            kind = cluster.get("scheduler") if isinstance(cluster, dict) else None
            if kind not in SCRIPT:
                trouble = (
                    f"{run.path} has jobs ({run.jobs}) but neither a batch script nor a readable config.yaml: "
                    "which scheduler has them is not known."
                )
    except OSError as error:
        trouble = f"{run.jobs} can't be read: {error.strerror}."
    if trouble:
        return RunEntry(run, member, kind, script, (), trouble=trouble)
    # a submission has recorded that it starts, and nothing of its end
    unclear = UNCLEAR in ids or (script is not None and not ids and run.read_state() == "queued")
    return RunEntry(run, member, kind, script, tuple(i for i in ids if i != UNCLEAR), unclear)
