"""From composed configurations to a submitted job: check everything, show it, run it in an allocation, or submit it."""

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm import client, dry_run, queue, rules, runs, submit, sweep
from slurm.allocation import Allocation, fill_from_allocation, find_allocation, fits
from slurm.job import Job, make_job
from slurm.render import render
from slurm.rules.request import Request
from src.config.paths import absolute
from src.config.schema import Config, Paths, load
from src.errors import ConfigError, SchedulerError, SubmitError
from src.files.output import protect
from src.runs.completed import complete, is_complete
from src.runs.folder import RunDir, open_run
from src.runs.from_scratch import refuse_unreadable
from src.runs.lock import RunLock
from src.runs.resume import resumed

Tree = Mapping[str, Any]
Check = Callable[[Config], list[str]]


def start(
    trees: Sequence[Tree], overrides: Sequence[Sequence[str]], wants_results: bool = False
) -> list[float | None]:
    """Submit one run, or one array for the members of a sweep.

    Args:
        trees: the composed configuration of each member.
        overrides: what was typed for each.
        wants_results: a sweeper asks what each member's metric became.

    Returns:
        `checkpoint.monitor` of each member's best checkpoint with `wait=true`, else None.

    Raises:
        ConfigError, SubmitError, SchedulerError, CheckpointError: nothing was written or is left behind.
        UnclearError: a job may be queued, and its run folder is kept.
    """
    sweep.refuse_unlike(trees)
    run = open_run(trees[0]["resume"]) if trees[0]["resume"] and len(trees) == 1 else None
    trees = [resumed(trees[0], run, overrides[0])] if run else list(trees)
    members = range(len(trees)) if len(trees) > 1 else None
    here = find_allocation(os.environ)
    configs = load_all(trees, overrides, lambda config: refusals(config, run, members, here))
    refuse_sweeper(configs[0], wants_results)
    request = request_of([fill_from_allocation(c, here) for c in configs], run)
    if run and is_complete(run, configs[0]):
        print(complete(run, configs[0]))
        return [None]
    if run and not configs[0].from_scratch:
        refuse_unreadable(run)
    if configs[0].dry_run:
        show(request)
        return [None] * len(configs)
    if run:
        refuse_second_job(run, bool(here))
    protect()  # a job that is submitted must not look like a failure because nobody reads that it is
    if here:
        sys.exit(submit.run_in_allocation(trees[0], overrides[0], request.job, run))
    return submit.submit(trees, overrides, request.job, run, configs, rules.notes(request))


def load_all(trees: Sequence[Tree], overrides: Sequence[Sequence[str]], check: Check) -> list[Config]:
    """Every member typed and checked, paths absolute.

    Raises:
        ConfigError: the problems of all members; those of a sweep say of which.
    """
    configs: list[Config] = []
    problems: list[str] = []
    for tree, typed in zip(trees, overrides, strict=True):
        try:
            configs.append(with_absolute_paths(load(tree, check)))
        except ConfigError as error:
            problems += [p if len(trees) == 1 else f"{' '.join(typed)}: {p}" for p in error.problems]
    if problems:
        raise ConfigError(*problems)
    return configs


def with_absolute_paths(config: Config) -> Config:
    """The configuration as the run folder will hold it."""
    paths = Paths(**{k: str(absolute(v)) for k, v in vars(config.paths).items()})
    return dataclasses.replace(config, paths=paths)


def refusals(
    config: Config, run: RunDir | None, members: Sequence[int] | None, here: Allocation | None
) -> list[str]:
    """What keeps one member from being submitted; of a dry run only what leaves no job to show."""
    try:
        config = with_absolute_paths(fill_from_allocation(config, here))
        request = Request(config, placeholder_job(config, run, members))
    except ConfigError as error:
        return error.problems
    if config.dry_run:
        return []
    return rules.problems(request) + (fits(request.job, here) if here else [])


def placeholder_job(config: Config, run: RunDir | None, members: Sequence[int] | None) -> Job:
    """The job of one member before its run folder is made."""
    folder = str(run.path) if run else f"{config.paths.results}/{config.name}/<run id>"
    return make_job(config, folder, f"{folder}/code", members)


def request_of(configs: Sequence[Config], run: RunDir | None) -> Request:
    """The one job of all members.

    Raises:
        ConfigError: where members differ in what the scheduler sees: they can't be one array.
    """
    names = {c.name for c in configs}
    name = names.pop() if len(names) == 1 else "sweep"
    members = range(len(configs)) if len(configs) > 1 else None
    jobs = [placeholder_job(dataclasses.replace(c, name=name), run, members) for c in configs]
    seen = [dataclasses.replace(j, batch=0, framework="", strategy="") for j in jobs]
    differing = [
        f.name
        for f in dataclasses.fields(Job)
        if any(getattr(j, f.name) != getattr(seen[0], f.name) for j in seen)
    ]
    if differing:
        raise ConfigError(
            f"a sweep is one job array, whose members all ask for the same, and these differ in {', '.join(differing)}; "
            "submit them one by one."
        )
    return Request(configs[0], jobs[0])


def refuse_second_job(run: RunDir, in_allocation: bool) -> None:
    """One job at a time in a run folder; a job that waits in the queue counts, this allocation itself does not.

    Raises:
        CheckpointError, SubmitError: with the other one's job id.
        SchedulerError: whether there is one can't be asked.
    """
    if in_allocation:
        RunLock(run).refuse_if_held()
        return
    before = runs.submitted(run.path)
    if before.trouble:
        raise SubmitError(before.trouble)
    if before.scheduler is None:
        return
    try:
        before = runs.with_unrecorded_jobs(before)
        living = queue.queued(before.scheduler or "", before.job_ids).living(before.job_ids)
    except SchedulerError as error:
        raise SchedulerError(
            f"whether a job of this run is queued is not known: {error} Nothing was submitted."
        ) from None
    runs.refuse_unclear(before)
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


def show(request: Request) -> None:
    """Print the dry run; with dry_run=test ask the scheduler too.

    Raises:
        ConfigError, SubmitError: what would stop a submission.
    """
    script = render(request.job)
    test = request.config.dry_run == "test"
    problems = rules.problems(request, elsewhere=not test)
    print(dry_run.report(script, request.job, rules.notes(request)), flush=True)
    if problems:
        raise ConfigError(*problems)
    if test and request.config.cluster.scheduler == "slurm":
        print(f"sbatch --test-only: {client.test_only(script)}")
    elif test:
        print("PBS has no way to test a script without submitting it.")
