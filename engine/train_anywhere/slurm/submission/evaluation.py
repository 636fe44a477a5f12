"""Submit the evaluation of a run: one process on one device, in a separate folder."""

import itertools
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SubmitError, UnclearError
from train_anywhere.features import Features
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import make_folder, write_atomic
from train_anywhere.files.removal import OwnedFolder, make_owned, remove, remove_empty
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm import rules
from train_anywhere.slurm.presets import is_elsewhere
from train_anywhere.slurm.rules.job_rules import DataCheck, Request
from train_anywhere.slurm.scheduler import client
from train_anywhere.slurm.scheduler.client import submit_chain
from train_anywhere.slurm.scheduler.queue import CANCEL
from train_anywhere.slurm.script import clean_environment, render
from train_anywhere.slurm.script.job import Job, make_job
from train_anywhere.slurm.status.dependency import Dependency, find_dependency
from train_anywhere.slurm.submission import snapshot
from train_anywhere.slurm.submission.submit import after_notes, format_dry_run, record_job, wait_for_jobs

FOLDER = "evaluations"


def start(config: Config, run: RunDir, arguments: Sequence[str], data_problems: DataCheck) -> int:
    """Submit or show the job of `src/evaluate.py`, on one device, and return the exit code.

    Raises ConfigError, SubmitError, SchedulerError: nothing was submitted, and all that was written is removed. Raises UnclearError:
    a job may be queued, and its folder is kept.
    """
    place = next_place(run)
    job = make_job(config, str(place.path), str(place.path / "code"))
    program = shlex.join(["src/evaluate.py", *arguments])
    job = replace(job, name=f"{job.name}-evaluate", program=program, features=Features())
    request = Request(config, job, data_problems)
    elsewhere = is_elsewhere(config.cluster, config.dry_run)
    problems = rules.problems(request, elsewhere)
    notes = [*rules.notes(request, elsewhere), *clean_environment.notes(render.render(job))]
    if config.dry_run:
        notes += after_notes(config.after, Path(config.paths.results))
        print(format_dry_run(render.render(job), job, notes), flush=True)
    if problems:
        raise ConfigError(*problems)
    if elsewhere:
        return 0
    followed = find_dependency(config.after, config.cluster.scheduler, Path(config.paths.results))
    if config.dry_run:
        return 0
    job_id = submit(job, place, Path(config.paths.results), followed)
    log = render.log_path(job).replace("%j", job_id) + ".out"
    kind = config.cluster.scheduler
    print(f"Submitted job {job_id} to {config.cluster.name}: 1 node, 1 process")
    print(f"Log:         {display_path(Path(log))}")
    print(f"Stop it:     {CANCEL[kind]} {job_id}")
    notes += [followed.note] if followed and followed.note else []
    print("".join(f"note: {note}\n" for note in notes), end="", flush=True)
    if config.wait:
        wait_for_jobs(kind, [job_id])
    return 0


def next_place(run: RunDir) -> OwnedFolder:
    """Return the first of the folders job-1, job-2, ... that does not exist."""
    names = (f"job-{n}" for n in itertools.count(1))
    name = next(n for n in names if not (run.path / FOLDER / n).exists())
    return OwnedFolder(run.path, (FOLDER, name), f"evaluation {name} of run {run.id}")


def claim(place: OwnedFolder) -> None:
    """Create the folder. Raises SubmitError if it exists, or the disk refuses it."""
    try:
        make_folder(place.path.parent)
        place.path.mkdir()
    except FileExistsError:
        raise SubmitError(
            f"{place.path} was just created by another submission; type the command again."
        ) from None
    except OSError as error:
        raise SubmitError(
            f"{place.path} can't be created ({error.strerror}); nothing was submitted."
        ) from error


def submit(job: Job, place: OwnedFolder, results: Path, followed: Dependency | None = None) -> str:
    """Write the code and the script, submit them, and return the job id."""
    kind = job.cluster.scheduler
    script = place.path / client.SCRIPT[kind]
    claim(place)
    try:
        make_owned(place)
        snapshot.take_snapshot(ROOT, Path(job.code), results)
        write_atomic(script, render.render(job))
        ok = followed.jobs if followed else ()
        return submit_chain(kind, script, 1, lambda i: record_job([RunDir(place.path)], None, i), ok=ok)[0]
    except UnclearError as error:
        raise error.add_sentence(f"Its folder is kept: {display_path(place.path)}") from None
    except BaseException as error:
        with suppress(OSError):
            remove(place)
            remove_empty(place.path.parent)
        if isinstance(error, OSError):
            raise SubmitError(
                f"{place.path} can't be written ({error.strerror or error}); nothing was submitted."
            ) from error
        raise
