"""Submit the evaluation of a run: one process on one device, in a folder of its own below the run's."""

import itertools
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from train_anywhere import features
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SubmitError, UnclearError
from train_anywhere.features import Features
from train_anywhere.features.feature import Followed
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.marked import Place, make
from train_anywhere.files.ordinary import make_folder
from train_anywhere.files.removal import remove, remove_empty
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm import rules
from train_anywhere.slurm.rules.rule_request import DataCheck, Request
from train_anywhere.slurm.scheduler import client
from train_anywhere.slurm.script import clean_environment, render
from train_anywhere.slurm.script.job import Job, make_job
from train_anywhere.slurm.submission import dry_run, snapshot
from train_anywhere.slurm.submission.submit import wait_for

FOLDER = "evaluations"
STOP = {"slurm": "scancel", "pbs": "qdel"}


def start(config: Config, run: RunDir, arguments: Sequence[str], data_problems: DataCheck) -> int:
    """Submit it, or show it with `dry_run`; returns the exit code.

    Args:
        config: of the run, on one device of the cluster.
        arguments: of `src/evaluate.py`.

    Raises:
        ConfigError, SubmitError, SchedulerError: nothing is left behind.
        UnclearError: a job may be queued, and its folder is kept.
    """
    place = free_place(run)
    job = make_job(config, str(place.path), str(place.path / "code"))
    program = shlex.join(["src/evaluate.py", *arguments])
    job = replace(job, name=f"{job.name}-evaluate", program=program, features=Features())
    request = Request(config, job, data_problems)
    problems = rules.problems(request, elsewhere=config.dry_run is True)
    notes = [*rules.notes(request), *clean_environment.notes(render.render(job))]
    if config.dry_run:
        print(dry_run.report(render.render(job), job, [*notes, *dry_run.waits_for(config)]), flush=True)
    if problems:
        raise ConfigError(*problems)
    if config.dry_run:
        return 0
    followed = features.follow({"after": config.after}, config.cluster.scheduler, Path(config.paths.results))
    job_id = submit(job, place, Path(config.paths.results), followed)
    log = render.log_path(job).replace("%j", job_id) + ".out"
    kind = config.cluster.scheduler
    print(f"Submitted job {job_id} to {config.cluster.name}: 1 node, 1 process")
    print(f"Log:         {display_path(Path(log))}")
    print(f"Stop it:     {STOP[kind]} {job_id}")
    notes += [followed.note] if followed and followed.note else []
    print("".join(f"note: {note}\n" for note in notes), end="", flush=True)
    if config.wait:
        wait_for(kind, [job_id])
    return 0


def free_place(run: RunDir) -> Place:
    """The first of job-1, job-2, ... that is not there."""
    names = (f"job-{n}" for n in itertools.count(1))
    name = next(n for n in names if not (run.path / FOLDER / n).exists())
    return Place(run.path, (FOLDER, name), f"evaluation {name} of run {run.id}")


def claim(place: Place) -> None:
    """Make the folder. Raises SubmitError: another submission has just made it, or the disk refuses."""
    try:
        make_folder(place.path.parent)
        place.path.mkdir()
    except FileExistsError:
        raise SubmitError(
            f"{place.path} has just been made by another submission; type the command again."
        ) from None
    except OSError as error:
        raise SubmitError(f"{place.path} can't be made ({error.strerror}); nothing was submitted.") from error


def submit(job: Job, place: Place, results: Path, followed: Followed | None = None) -> str:
    """Write code and script and submit them; returns the job id."""
    kind = job.cluster.scheduler
    script = place.path / client.SCRIPT[kind]
    claim(place)
    try:
        make(place)
        snapshot.take(ROOT, Path(job.code), results)
        write_atomic(script, render.render(job))
        return client.submit_script(kind, script, ok=followed.jobs if followed else ())
    except UnclearError as error:
        raise error.adding(f"Its folder is kept: {display_path(place.path)}") from None
    except BaseException as error:
        with suppress(OSError):
            remove(place)
            remove_empty(place.path.parent)
        if isinstance(error, OSError):
            raise SubmitError(
                f"{place.path} can't be written ({error.strerror or error}); nothing was submitted."
            ) from error
        raise
