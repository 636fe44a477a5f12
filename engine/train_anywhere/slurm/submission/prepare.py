"""From composed configurations to a submitted job: check everything, show it, run it in an allocation, or submit it."""

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from train_anywhere import features
from train_anywhere.config.command.members import Tree, load_members, refuse_unlike
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SchedulerError, SubmitError
from train_anywhere.files.terminal.output import protect
from train_anywhere.runs.folder import RunDir, open_run
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.reopen.completed import complete, is_complete
from train_anywhere.runs.reopen.resume import resumed
from train_anywhere.slurm import rules
from train_anywhere.slurm.rules import slurm_conf
from train_anywhere.slurm.rules.rule_request import DataCheck, Request
from train_anywhere.slurm.scheduler import client, queue
from train_anywhere.slurm.script import clean_environment
from train_anywhere.slurm.script.job import Job, make_job
from train_anywhere.slurm.script.render import render
from train_anywhere.slurm.status import find_runs
from train_anywhere.slurm.submission import dry_run
from train_anywhere.slurm.submission.allocation import (
    Allocation,
    current_allocation,
    fill_from_allocation,
    fits,
    incomplete,
)
from train_anywhere.slurm.submission.submit import run_in_allocation, submit

RunCheck = Callable[[RunDir, Config], None]
"""Raises CheckpointError for a run that can't be resumed; passed in, since checkpoints are read by other rooms."""


def start(
    trees: Sequence[Tree],
    overrides: Sequence[Sequence[str]],
    data_problems: DataCheck,
    refuse_unreadable: RunCheck,
    wants_results: bool = False,
) -> list[float | SubmitError | None]:
    """Submit one run, or one array for the members of a sweep.

    Args:
        trees: the composed configuration of each member.
        overrides: what was typed for each.
        data_problems, refuse_unreadable: checks of the data and of the checkpoints, of rooms that this one does not know.
        wants_results: a sweeper asks what each member's metric became.

    Returns:
        With `wait=true` of each member the best value of `checkpoint.monitor`, or why there is none; else None.

    Raises:
        ConfigError, SubmitError, SchedulerError, CheckpointError: nothing was written or is left behind.
        UnclearError: a job may be queued, and its run folder is kept.
    """
    refuse_unlike(trees, submitted=True)
    run = open_run(trees[0]["resume"]) if trees[0]["resume"] and len(trees) == 1 else None
    here = current_allocation()
    numbers = range(len(trees)) if len(trees) > 1 else None
    jobs: list[Job] = []
    members = load_members(
        [resumed(trees[0], run, overrides[0])] if run else trees,
        overrides,
        lambda config: refusals(config, run, numbers, here, data_problems, jobs),
    )
    refuse_sweeper(members[0].config, wants_results)
    request = Request(fill_from_allocation(members[0].config, here), one_job(jobs), data_problems)
    if run:
        if is_complete(run, members[0].config):
            print(complete(run, members[0].config))
            return [None]
        refuse_unreadable(run, members[0].config)
    limits = [] if here else slurm_conf.problems(request.job)
    if members[0].config.dry_run:
        show(request, here, limits)
        return [None] * len(members)
    if limits:
        raise ConfigError(*limits)
    c = members[0].config
    followed = features.follow({"after": c.after}, c.cluster.scheduler, Path(c.paths.results))
    if run:
        refuse_second_job(run, bool(here))
    protect()  # a job that is submitted must not look like a failure because nobody reads that it is
    if here:
        sys.exit(run_in_allocation(request, members[0], run))
    return submit(request, members, run, followed)


def refusals(
    config: Config,
    run: RunDir | None,
    members: Sequence[int] | None,
    here: Allocation | None,
    data_problems: DataCheck,
    jobs: list[Job] | None = None,
) -> list[str]:
    """What keeps one member from being submitted; of a dry run only what leaves no job to show.

    Args:
        jobs: receives the job of the member.
    """
    try:
        config = fill_from_allocation(config, here)
        request = Request(config, placeholder_job(config, run, members), data_problems)
        if jobs is not None:
            jobs.append(request.job)
    except ConfigError as error:
        return error.problems
    if config.dry_run:
        return []
    if not here:
        return rules.problems(request)
    waits = features.problems(config, lambda one: one.problems_in_allocation())
    return [*rules.problems(request), *fits(request.job, here), *incomplete(os.environ), *waits]


def placeholder_job(config: Config, run: RunDir | None, members: Sequence[int] | None) -> Job:
    """The job of one member before its run folder is made."""
    folder = str(run.path) if run else f"{config.paths.results}/{config.name}/<run id>"
    return make_job(config, folder, f"{folder}/code", members)


def one_job(jobs: Sequence[Job]) -> Job:
    """Return the one job of all members.

    Raises:
        ConfigError: members differ in what the scheduler sees: they can't be one array.
    """
    first = jobs[0]
    if len({job.name for job in jobs}) > 1:
        run = Path(first.run).parent.parent / "sweep" / Path(first.run).name
        first = dataclasses.replace(first, name="sweep", run=str(run), code=f"{run}/code")
    if differing := {name for job in jobs for name in _differing(first, job)}:
        raise ConfigError(
            "the members of a sweep share one job array and must request the same; these differ in "
            f"{', '.join(sorted(differing))}: submit them one by one."
        )
    return first


NOT_SEEN = ("name", "run", "code", "batch", "framework", "strategy", "features")
"""Fields of a job that may differ in one array: the script has none of them, or computes them for each member."""


def _differing(one: Job, other: Job) -> Iterator[str]:
    for f in dataclasses.fields(Job):
        if f.name not in NOT_SEEN and getattr(one, f.name) != getattr(other, f.name):
            yield f.name
    if Path(one.run).parent.parent != Path(other.run).parent.parent:
        yield "paths.results"
    ours, theirs = one.features.in_script, other.features.in_script
    yield from (name for name in ours | theirs if ours.get(name) != theirs.get(name))


def refuse_second_job(run: RunDir, in_allocation: bool) -> None:
    """One job at a time in a run folder; a job that waits in the queue counts, this allocation itself does not.

    Raises:
        CheckpointError, SubmitError: with the other one's job id.
        SchedulerError: whether there is one can't be asked.
    """
    if in_allocation:
        RunLock(run).refuse_if_held()
        return
    before = find_runs.submitted(run.path)
    if before.trouble:
        raise SubmitError(before.trouble)
    if before.scheduler is None:
        return
    try:
        before = find_runs.with_unrecorded_jobs(before)
        living = queue.queued(before.scheduler or "", before.job_ids).living(before.job_ids)
    except SchedulerError as error:
        raise SchedulerError(
            f"whether a job of this run is queued is not known: {error} Nothing was submitted."
        ) from None
    find_runs.refuse_unclear(before)
    if living:
        raise SubmitError(
            f"{queue.describe(living)} and is of this run: two would overwrite each other's checkpoints. "
            f"Wait for its end, stop it (src/jobs.py cancel {run.id}), or start a new run."
        )


def refuse_sweeper(config: Config, wants_results: bool) -> None:
    """A sweeper that decides by results needs jobs that have ended.

    Raises:
        ConfigError: where the submission would return before.
    """
    if wants_results and not config.wait:
        raise ConfigError(
            "this sweeper decides by the results of the members, but a submission returns before they ran; "
            "use wait=true, or hydra/sweeper=product."
        )


def show(request: Request, here: Allocation | None, limits: Sequence[str]) -> None:
    """Print the dry run; with dry_run=test ask the scheduler too.

    Args:
        here: the allocation in which the job would run, instead of being submitted.
        limits: those of this machine's Slurm that the job breaks.

    Raises:
        ConfigError, SubmitError: what would stop a submission.
    """
    script = render(request.job)
    test, kind = request.config.dry_run == "test", request.config.cluster.scheduler
    problems = rules.problems(request, elsewhere=not test)
    waits = dry_run.waits_for(request.config)
    of_shell = [] if here else clean_environment.notes(script)
    notes = [*rules.notes(request), *of_shell, *waits, *([] if test else limits)]
    print(dry_run.report(script, request.job, notes), flush=True)
    if problems or (test and limits):
        raise ConfigError(*problems, *limits)
    if test and kind == "slurm":
        print(f"sbatch --test-only: {client.test_only(script)}")
    elif test:
        print("PBS has no way to test a script without submitting it.")
    elif kind == "slurm" and shutil.which("sbatch"):
        print(client.expected(script))
