"""Turn configurations into a job: check everything, then show, run or submit it."""

import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from train_anywhere import features
from train_anywhere.config.command.members import Tree, load_members, refuse_alone, refuse_mixed_members
from train_anywhere.config.schema import Config
from train_anywhere.distributed import programs
from train_anywhere.errors import ConfigError, SchedulerError, SubmitError, listed
from train_anywhere.files.terminal.fit import fit, terminal_width
from train_anywhere.files.terminal.output import protect_output
from train_anywhere.runs.folder import RunDir, open_run
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.reopen.resume import completion_message, is_complete, merge_resumed
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm import rules
from train_anywhere.slurm.presets import is_elsewhere
from train_anywhere.slurm.rules.job_rules import DataCheck, Request
from train_anywhere.slurm.scheduler import client, queue
from train_anywhere.slurm.script import clean_environment
from train_anywhere.slurm.script.job import Job, make_job
from train_anywhere.slurm.script.render import render
from train_anywhere.slurm.status import find_runs
from train_anywhere.slurm.status.dependency import find_dependency
from train_anywhere.slurm.submission import allocation
from train_anywhere.slurm.submission.allocation import Allocation, fill_from_allocation, is_only_node
from train_anywhere.slurm.submission.submit import format_job, run_in_allocation, submit


def slurm_conf_problems(job: Job) -> Iterator[str]:
    """Yield a message for each limit of slurm.conf that an array or uneven job breaks."""
    uneven, conf = job.gpus and not job.even, dict[str, str]()
    with suppress(SchedulerError):
        if job.cluster.scheduler == "slurm" and (job.members or uneven):
            shown = programs.query(["scontrol", "show", "config"], unknown="(?!)")
            conf = dict(re.findall(r"^(\w+) *= (.*?) *$", shown, re.MULTILINE))
    limit, select = conf.get("MaxArraySize", ""), conf.get("SelectType", "")
    if job.members and limit.isdecimal() and max(job.array) >= int(limit):
        yield (
            f"the sweep has {len(job.members)} members, but an array of this cluster can have at most {limit} (MaxArraySize of `scontrol "
            f"show config`); submit it in parts, each with -m and at most {limit} members."
        )
    if uneven and select == "select/linear":
        yield (
            f"this cluster has SelectType={select} (SelectTypeParameters={conf.get('SelectTypeParameters', '')}), which gives each node "
            f"of a job the same number of GPUs, and trainer.total_devices={sum(job.devices)} on {job.nodes} nodes is uneven; use "
            f"trainer.nodes={job.nodes} trainer.devices={max(job.devices)} trainer.total_devices=null."
        )


def start(
    trees: Sequence[Tree],
    overrides: Sequence[Sequence[str]],
    data_problems: DataCheck,
    refuse_unreadable: Callable[[RunDir], None],
    first: int = 0,
) -> list[float | SubmitError | None]:
    """Submit one run, or one array for the members of a sweep.

    `refuse_unreadable` raises CheckpointError for a run that can't be resumed. It is injected so that `slurm` does not import
    `checkpoints`. `first` is the number of the first member.

    Returns:
        For each member, with `wait=true` the best value of `checkpoint.monitor`, or why there is none; else None.

    Raises:
        ConfigError, SubmitError, SchedulerError, CheckpointError: nothing was submitted, and all that was written is removed.
        UnclearError: a job may be queued, and its run folder is kept.
    """
    refuse_mixed_members(trees, submitted=True)
    run = open_run(trees[0]["resume"]) if trees[0]["resume"] and len(trees) == 1 else None
    here, jobs = allocation.current_allocation(), list[Job]()
    numbers = range(first, first + len(trees)) if len(trees) > 1 or trees[0].get("study") else None
    if numbers is None and run is None:
        refuse_alone(trees[0])
    trees = [merge_resumed(trees[0], run, overrides[0])] if run else trees
    shown = bool(trees[0]["dry_run"])  # a dry run shows the job, then refuses what a submission refuses
    check = partial(refusals, run=run, members=numbers, here=here, data_problems=data_problems, jobs=jobs)
    members = load_members(trees, overrides, partial(check, only_job=shown))
    c = members[0].config
    job = common_job(jobs)
    request = Request(fill_from_allocation(c, here), job, data_problems, on_node=is_only_node(job, here))
    if run and not c.from_scratch:
        if is_complete(run, c):
            print(completion_message(run, c))
            return [None]
        refuse_unreadable(run)
    if shown:
        script, elsewhere = render(job), is_elsewhere(c.cluster, c.dry_run)
        show_dry_run(request, here, script, elsewhere)
        load_members(trees, overrides, check)
        if not elsewhere:
            find_followed(request, run, here)
            ask_scheduler(script, c.cluster.scheduler, c.dry_run == "test")
        return [None] * len(members)
    after, jobs_before = find_followed(request, run, here)
    protect_output()  # a closed output (`| head`) must not make a submitted job look like a failure
    if here:
        sys.exit(run_in_allocation(request, members[0], run, allocation.chosen_nodes(job, here)))
    return submit(request, members, run, after, jobs_before)


def find_followed(
    request: Request, run: RunDir | None, here: Allocation | None
) -> tuple[str | None, tuple[str, ...]]:
    """Return the run of after= and its jobs, after asking the scheduler for its limits and for the jobs of a resumed `run`.

    Raises ConfigError, SubmitError, SchedulerError, CheckpointError: the job can't be submitted.
    """
    c = request.config
    if limits := [] if here else [*slurm_conf_problems(request.job)]:
        raise ConfigError(*limits)
    followed = find_dependency(c.after, c.cluster.scheduler, Path(c.paths.results))
    if run:
        refuse_second_job(run, bool(here))
    return followed


def refusals(
    config: Config,
    run: RunDir | None,
    members: Sequence[int] | None,
    here: Allocation | None,
    data_problems: DataCheck,
    jobs: list[Job] | None = None,
    only_job: bool = False,
) -> list[str]:
    """Return the problems that prevent a submission of one member, in a dry run too.

    With `only_job` they are only those that leave no job to show.
    """
    try:
        config = fill_from_allocation(config, here)
        job = placeholder_job(config, run, members)
    except ConfigError as error:
        return error.problems
    if jobs is not None:
        jobs.append(job)
    if only_job:
        return []
    request = Request(config, job, data_problems, on_node=is_only_node(job, here))
    problems = rules.problems(request, is_elsewhere(config.cluster, config.dry_run))
    if here:
        problems += [*allocation.find_mismatches(job, here), *allocation.missing_variables(os.environ)]
        problems += features.problems(config, "allocation")
    return problems


def placeholder_job(config: Config, run: RunDir | None, members: Sequence[int] | None) -> Job:
    """Return the job of one member before its run folder exists."""
    folder = str(run.path) if run else f"{config.paths.results}/{config.name}/<run id>"
    return make_job(config, folder, f"{folder}/code", members)


def common_job(jobs: Sequence[Job]) -> Job:
    """Return the job that all members share. Raises ConfigError if they request different things."""
    first, of_script = jobs[0], {"ranks", "devices", "time", "constraint"}  # of the layout and the cluster
    fields = {f.name for f in dataclasses.fields(Job)} - MEMBER_FIELDS | of_script
    if len({job.name for job in jobs}) > 1:
        run = Path(first.run).parent.parent / "sweep" / Path(first.run).name
        first = dataclasses.replace(first, name="sweep", run=str(run), code=f"{run}/code")
    differing = set()
    for job in jobs:
        differing |= {name for name in fields if getattr(first, name) != getattr(job, name)}
        if Path(first.run).parent.parent != Path(job.run).parent.parent:
            differing.add("paths.results")
        ours, theirs = first.features.in_script, job.features.in_script
        differing |= {name for name in ours | theirs if ours.get(name) != theirs.get(name)}
    if differing:
        raise ConfigError(
            "the members of a sweep share one job array and must request the same; these differ in "
            f"{listed(sorted(differing))}: submit them one by one."
        )
    return first


MEMBER_FIELDS = {"name", "run", "code", "batch", "framework", "layout", "features", "command"}
"""Fields of a job that may differ in one array: the script does not contain them, or computes them for each member."""


def refuse_second_job(run: RunDir, in_allocation: bool) -> None:
    """Refuse a second job in a run folder. This allocation itself does not count.

    Raises CheckpointError, SubmitError: there is another job, which the message names. Raises SchedulerError: the scheduler does not
    answer.
    """
    if in_allocation:
        RunLock(run).refuse_if_held()
        return
    before = find_runs.read_entry(run.path)
    if before.trouble:
        raise SubmitError(before.trouble)
    if before.scheduler is None:
        return
    try:
        [before] = find_runs.with_unrecorded_jobs([before], wait=True)
        active = queue.query_queue(before.scheduler or "", before.job_ids).active(before.job_ids)
    except SchedulerError as error:
        raise SchedulerError(
            f"whether a job of this run is queued is not known: {error} Nothing was submitted."
        ) from None
    find_runs.refuse_unclear(before)
    if active:
        raise SubmitError(
            f"{queue.describe(active)} and belongs to this run: two would overwrite each other's checkpoints. "
            f"Wait for its end, stop it (src/jobs.py cancel {run.id}), or start a new run."
        )


def show_dry_run(request: Request, here: Allocation | None, script: str, elsewhere: bool) -> None:
    """Print the job of a dry run. Raises SubmitError: the run of after= does not exist."""
    c, width = request.config, terminal_width()
    notes = [*rules.notes(request, elsewhere), *([] if here else clean_environment.notes(script))]
    if c.after:
        after = find_runs.strip_root(c.after)
        try:
            find_runs.find(after, Path(c.paths.results))
        except SubmitError as error:
            raise SubmitError(f"after={after}: {error}") from None
        notes.append(f"it starts when {display_path(Path(c.after))} is complete (after=).")
    if elsewhere:
        notes.append(
            f"this is not a login node of {request.cluster}, so folders and packages of this machine were not checked."
        )
    parts = [script, fit(format_job(request.job), width, 12)]
    parts += [fit("\n".join(f"note: {n}" for n in notes), width)] if notes else []
    print("\n\n".join([*parts, "dry run: nothing was written or submitted."]), flush=True)


def ask_scheduler(script: str, kind: str, test: bool) -> None:
    """Print when Slurm expects the job to start, or test the script. Raises SubmitError if Slurm refuses it."""
    if test:
        without = "PBS has no way to test a script without submitting it."
        print(f"sbatch --test-only: {client.test_only(script)}" if kind == "slurm" else without)
    elif kind == "slurm" and shutil.which("sbatch"):
        print(client.estimate_start(script))
