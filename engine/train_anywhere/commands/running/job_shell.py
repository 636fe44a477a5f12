"""Find the job or process that trains a run: `jobs.py cancel` ends it, `jobs.py shell` opens a shell next to its ranks."""

import getpass
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError, SubmitError, listed
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.summary import is_program
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.script.render import apptainer_command, pyxis_options
from train_anywhere.slurm.status import find_runs, local_runs
from train_anywhere.slurm.status.find_runs import RunEntry

STARTED_STATES = ("running", "starting")
"""States of a run whose ranks exist or are being started."""


@contextmanager
def explain_unreachable_scheduler(consequence: str) -> Iterator[None]:
    """Add the consequence, what was not done, to the error of an unreachable scheduler."""
    try:
        yield
    except SchedulerError as error:
        raise SchedulerError(f"what is queued is not known: {error} {consequence}") from None


def find_job(run: RunEntry, what: str) -> str:
    """Return the id of the job that trains the run now; empty for a run of this machine.

    Args:
        run: the run.
        what: what the run must do for the command, such as "save a checkpoint", for the message.

    Raises:
        SubmitError: the run does not train now.
        SchedulerError: the scheduler does not answer.
    """
    if run.scheduler is None:
        state, job = local_runs.read_state(run)[0], ""
    else:
        with explain_unreachable_scheduler("Nothing was done."):
            [run], known = find_runs.query_scheduler([run])
        running = [i for i, state in known.active(run.job_ids).items() if state == "RUNNING"]
        state, job = find_runs.read_state(run, known)[0], (running or [""])[-1]
    if state not in STARTED_STATES:
        where = "it ran on this machine and" if run.scheduler is None else "it"
        raise SubmitError(f"{where} is {state}; only a run that is running can {what}.")
    return job


def refuse_program(run: RunEntry, advice: str) -> None:
    """Raise SubmitError if the run is a program, which has no training loop that could be asked for something."""
    if is_program(run.folder):
        raise SubmitError(f"it is a program, {advice}.")


def cancel(run: RunEntry) -> str:
    """Remove a run from the queue, or stop it; return what to print. Raises SubmitError, SchedulerError."""
    if run.scheduler is None:
        return local_runs.stop(run)
    with explain_unreachable_scheduler("Nothing was cancelled."):
        [run] = find_runs.with_unrecorded_jobs([run], wait=True)
        living = [*queue.query_queue(run.scheduler or "", run.job_ids).active(run.job_ids)]
        local_runs.refuse_other_jobs(run, living)
    if not living:
        find_runs.refuse_unclear(run)
    ending, info = queue.cancel(run.scheduler or "", living) if living else {}, run.folder.read_info()
    # the job that members share is cancelled with the first of them
    if info.get("state") == "queued" and (living or info.get("pack")):
        run.folder.update(state="cancelled")
    if not living:
        return f"{run.folder.id} has no queued or running job."
    return f"{run.folder.id}: cancelled job {listed(living)}{', which is ending' if ending else ''}."


def shell(run: RunEntry, node: str | None) -> NoReturn:
    """Replace this process by a shell on a node of the run's job.

    Args:
        run: the run.
        node: number of the node from 0, or its name; None: that of rank 0.

    Raises:
        SubmitError: the run does not train, or not in a job of Slurm, or the job has no such node.
        SchedulerError: Slurm does not answer.
    """
    job = find_job(run, "open a shell")
    if not job:
        who = local_runs.read_state(run)[1]
        raise SubmitError(
            f"it runs without a job, as {who or 'a process that starts'}: any shell there is next to it."
        )
    name = _find_node([str(h) for h in run.folder.read_info().get("hosts") or []], node)
    frozen = read_frozen(run.folder)  # not checked: an older version may have started the run
    login = (_section(frozen, "cluster").get("site") or {}).get("login") or "<login node>"
    ssh = f"ssh -J {getpass.getuser()}@{login} {getpass.getuser()}@{name}"
    if run.scheduler != "slurm":
        raise SubmitError(
            f"PBS opens no shell in a running job. If the site lets you log in to nodes of your jobs: {ssh}"
        )
    with explain_unreachable_scheduler("No shell was opened."):
        local_runs.refuse_other_jobs(run, [job], "no shell was opened", "srun --overlap --pty bash --jobid")
    folder = str(run.folder.path)
    options, inside = _container(frozen, folder)
    # the job's own number, which a member of an array has besides 24_1
    query = ["squeue", "--noheader", "--format=%A", f"--jobs={job}"]
    number = next(iter(programs.query(query, queue.UNKNOWN["squeue"]).split()), job)
    step = ["srun", f"--jobid={number}", "--overlap", "--whole", "--mem=0", "--cpu-bind=none"]
    where = ["--nodes=1", "--ntasks=1", f"--nodelist={name}", f"--chdir={folder}", "--export=ALL"]
    terminal, typed = (["--pty"], ["-i"]) if sys.stdin.isatty() else ([], [])
    command = [*step, *where, *terminal, *options, *inside, "bash", *typed]
    print(
        f"VS Code, Remote-SSH: {ssh}   (if the site lets you log in to the nodes of your jobs)\n{shlex.join(command)}",
        file=sys.stderr,
        flush=True,
    )
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, programs.client_environment())
    except OSError as error:
        raise SubmitError(f"srun can't be started on this machine: {error.strerror}.") from None


def _container(frozen: dict[str, Any], folder: str) -> tuple[list[str], list[str]]:
    """Return srun's options and the first words of a command in the run's container; both empty without one."""
    container, paths = _section(frozen, "container"), _section(frozen, "paths")
    data = [str(paths["data"])] if os.path.isdir(str(paths.get("data"))) else []
    mounts = [str(paths.get("results")), *data, *map(str, container.get("mounts") or [])]
    image, gpus = str(container.get("image")), _section(frozen, "trainer").get("accelerator") != "cpu"
    if container.get("name") == "pyxis":
        return shlex.split(pyxis_options(image, mounts, folder)), []
    if container.get("name") == "apptainer":
        return [], shlex.split(apptainer_command(image, mounts, folder, gpus))
    return [], []


def _section(frozen: dict[str, Any], name: str) -> dict[str, Any]:
    found = frozen.get(name)
    return found if isinstance(found, dict) else {}


def _find_node(hosts: list[str], node: str | None) -> str:
    """Return the name of a node of the run, from its number or its name. Raises SubmitError."""
    if not hosts:
        raise SubmitError(
            "its ranks have not started yet, so its nodes are not known; try again in a moment."
        )
    if node is None:
        return hosts[0]
    named = hosts[int(node)] if node.isdecimal() and int(node) < len(hosts) else node
    if named not in hosts:
        known = listed(f"{n} is {host}" for n, host in enumerate(hosts))
        raise SubmitError(f"it has no node {node}: {known}.")
    return named
