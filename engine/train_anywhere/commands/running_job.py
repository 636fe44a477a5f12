"""A run that trains now: `jobs.py cancel` ends it, `shell` opens a shell next to its ranks, `save`, `debug` and `profile` ask the ranks."""

import getpass
import os
import re
import secrets
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from train_anywhere.checkpoints.store import CheckpointStore
from train_anywhere.config.keys import flatten
from train_anywhere.distributed import programs
from train_anywhere.errors import CheckpointError, SchedulerError, SubmitError, listed
from train_anywhere.files.atomic import read_json
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.monitor import live
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.summary import display_path, is_program
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.script.render import apptainer_command, pyxis_options
from train_anywhere.slurm.status import find_runs
from train_anywhere.slurm.status.find_runs import RunEntry


@contextmanager
def explain_unreachable_scheduler(consequence: str) -> Iterator[None]:
    """Add the consequence, what was not done, to the error of an unreachable scheduler."""
    try:
        yield
    except SchedulerError as error:
        raise SchedulerError(f"what is queued is not known: {error} {consequence}") from None


def find_job(run: RunEntry, what: str) -> str:
    """Return the id of the job that trains the run now; empty for a run of this machine.

    `what` the run must do, such as "save a checkpoint", is for the message. Raises SubmitError if the run does not train; SchedulerError.
    """
    with explain_unreachable_scheduler("Nothing was done."):
        [run], known = find_runs.query_scheduler([run])
    running = [i for i, state in known.active(run.job_ids).items() if state == "RUNNING"]
    state, job = find_runs.read_state(run, known)[0], (running or [""])[-1]
    if state not in ("running", "starting"):
        where = "it ran on this machine and" if run.scheduler is None else "it"
        raise SubmitError(f"{where} is {state}; only a run that is running can {what}.")
    return job


def cancel(run: RunEntry) -> str:
    """Remove a run from the queue, or stop it; return what to print. Raises SubmitError, SchedulerError."""
    if run.scheduler is None:
        return find_runs.stop_process(run)
    with explain_unreachable_scheduler("Nothing was cancelled."):
        [run] = find_runs.with_unrecorded_jobs([run], wait=True)
        living = [*queue.query_queue(run.scheduler or "", run.job_ids).active(run.job_ids)]
        find_runs.refuse_other_jobs(run, living)
    if not living:
        find_runs.refuse_unclear(run)
    ending, info = queue.cancel(run.scheduler or "", living) if living else {}, run.folder.read_info()
    # the job that members share is cancelled with the first of them
    if info.get("state") == "queued" and (living or info.get("pack")):
        run.folder.update_or_defer(state="cancelled")
    if not living:
        return f"{run.folder.id} has no queued or running job."
    return f"{run.folder.id}: cancelled job {listed(living)}{', which is ending' if ending else ''}."


def shell(run: RunEntry, node: str | None) -> NoReturn:
    """Replace this process by a shell on a node of the run's job: number from 0, or name; None: that of rank 0.

    Raises SubmitError if the run does not train, or not in a job of Slurm, or the job has no such node; SchedulerError.
    """
    job = find_job(run, "open a shell")
    if not job:
        who = find_runs.read_state(run)[1]
        raise SubmitError(
            f"it runs without a job, as {who or 'a process that starts'}: any shell there is next to it."
        )
    name = _find_node([str(h) for h in run.folder.read_info().get("hosts") or []], node)
    flat = flatten(read_frozen(run.folder))  # not checked: an older version may have started the run
    login = flat.get("cluster.site.login") or "<login node>"
    ssh = f"ssh -J {getpass.getuser()}@{login} {getpass.getuser()}@{name}"
    if run.scheduler != "slurm":
        raise SubmitError(
            f"PBS opens no shell in a running job. If the site lets you log in to nodes of your jobs: {ssh}"
        )
    with explain_unreachable_scheduler("No shell was opened."):
        find_runs.refuse_other_jobs(run, [job], "no shell was opened", "srun --overlap --pty bash --jobid")
    folder = str(run.folder.path)
    options, inside = _container(flat, folder)
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


def _container(flat: Mapping[str, Any], folder: str) -> tuple[list[str], list[str]]:
    """Return srun's options and the first words of a command in the run's container; both empty without one."""
    kind, image, data = (str(flat.get(key)) for key in ("container.name", "container.image", "paths.data"))
    mounts = [str(flat.get("paths.results")), *([data] if os.path.isdir(data) else [])]
    mounts += map(str, flat.get("container.mounts") or [])
    options = pyxis_options(image, mounts, folder) if kind == "pyxis" else ""
    gpus = flat.get("trainer.accelerator") != "cpu"
    inside = apptainer_command(image, mounts, folder, gpus) if kind == "apptainer" else ""
    return shlex.split(options), shlex.split(inside)


def _find_node(hosts: list[str], node: str | None) -> str:
    """Return the name of a node of the run, from its number or its name. Raises SubmitError."""
    if not hosts:
        raise SubmitError(
            "its ranks have not started yet, so its nodes are not known; try again in a moment."
        )
    named = {host: host for host in hosts} | {str(n): host for n, host in enumerate(hosts)}
    if node and node not in named:
        known = listed(f"{n} is {host}" for n, host in enumerate(hosts))
        raise SubmitError(f"it has no node {node}: {known}.")
    return named[node] if node else hosts[0]


T = TypeVar("T")

ANSWER_S = 45.0
"""Seconds for the monitors of all nodes to answer: they look for requests every few seconds, and py-spy takes up to 10."""


def ask(
    run: RunEntry,
    name: str,
    request: Mapping[str, Any],
    what: str,
    timeout: float,
    answer: Callable[[], T | None],
) -> T | None:
    """Write a request to a run, wait until `answer` returns something, and withdraw the request. None: `timeout` seconds have passed.

    `name` is the file of the request, and `what` names what the run can't do if it does not train all the time. Raises SubmitError if it
    no longer trains, or its folder can't be written; SchedulerError.
    """
    file = run.folder.monitor / name
    try:
        live.write(file, request)
    except OSError as error:
        why = error.strerror or error
        raise SubmitError(
            f"{file} can't be written ({why}), so the run can't be asked; its owner can do it."
        ) from None
    checked = time.monotonic()
    end = checked + timeout
    try:
        while time.monotonic() < end:
            time.sleep(0.3)
            if (found := answer()) is not None:
                return found
            if time.monotonic() - checked >= 15:  # does it still train? that asks the scheduler
                checked = time.monotonic()
                find_job(run, what)
    finally:
        live.withdraw(file, request)
    return None


def save(run: RunEntry, stop: bool, timeout: float) -> None:
    """Make the run write a checkpoint, wait until it is complete, and print its path; with `stop`, then end the run.

    Raises SubmitError if the run does not train or is a program, or no checkpoint is complete after `timeout` seconds; SchedulerError.
    """
    what = "save a checkpoint"
    if is_program(run.folder):
        raise SubmitError("it is a program, which saves by itself; `jobs.py cancel` asks it to stop.")
    find_job(run, what)
    print(one_line(f"{run.folder.id}: waiting for its next checkpoint ..."), file=sys.stderr, flush=True)
    saved, store = run.folder.monitor / live.SAVED, CheckpointStore(run.folder.checkpoints)
    before = live.read_id(saved)

    def step() -> int | None:
        # another `save` may have replaced the request; its checkpoint is newer than this command too
        known = read_json(saved)
        return known["step"] if known.get("id") != before and isinstance(known.get("step"), int) else None

    def find() -> Any:
        if (least := step()) is None:
            return None
        return next((one.path for one in store.all() if one.step >= least), None)

    path = ask(run, live.SAVE, {"id": uuid.uuid4().hex}, what, timeout, find)
    if path is None:
        raise SubmitError(
            f"it saved nothing within {timeout:g} s. Several ranks save after the next step that logs metrics "
            "(trainer.log_every_n_steps), and none saves while it starts or tests: wait longer with --timeout."
            if (at := step()) is None
            else f"the checkpoint of step {at} was not complete after {timeout:g} s; `jobs.py logs` shows whether its disk is full."
        )
    print(one_line(display_path(path)), flush=True)
    if stop:
        print(one_line(cancel(run)))


def profile(run: RunEntry, steps: int, ranks: str, timeout: float) -> None:
    """Make ranks such as 0,3 or 0-3 profile their next `steps` optimizer steps, wait, and print the slowest operations.

    Raises SubmitError if it does not train, is a program, has not these ranks, or has no profile after `timeout` seconds; SchedulerError.
    """
    if is_program(run.folder):
        raise SubmitError(
            "it is a program, whose steps are its own; start the profiler of its framework in it."
        )
    find_job(run, "be profiled")
    wanted = parse_ranks(ranks, run.folder.read_info().get("world_size") or 1)
    number = 1 + secrets.randbelow(live.MAX_NUMBER - 1)
    which = f"rank{'s' if len(wanted) > 1 else ''} {listed(wanted)}"
    print(one_line(f"{run.folder.id}: waiting for {steps} steps of {which} ..."), file=sys.stderr, flush=True)

    def find() -> list[live.Profile] | None:
        found = [one for one in live.read_profiles(run.folder) if one.number == number]
        return found if {one.rank for one in found} >= {*wanted} else None

    request = {"number": number, "ranks": wanted, "steps": steps}
    if (found := ask(run, live.PROFILE, request, "be profiled", timeout, find)) is None:
        raise SubmitError(
            f"no profile of all these ranks within {timeout:g} s. Several ranks start after the next step that logs metrics "
            "(trainer.log_every_n_steps); `jobs.py logs` says if a profiler failed. Wait longer with --timeout, or profile fewer steps."
        )
    for one in found:
        print(one_line(f"rank {one.rank}, steps {one.first}-{one.last}:"))
        for ms, calls, name in live.operation_rows(one):
            print(one_line(f"  {ms:>10} ms a step  {calls:>8} calls  {name}"))
    print(one_line(display_path(run.folder.path / "profile")))


def parse_ranks(text: str, size: int) -> list[int]:
    """Return the numbers in a list such as 0,3 or 0-3. Raises SubmitError if the run has no such rank."""
    parts = [re.fullmatch("([0-9]{1,6})(?:-([0-9]{1,6}))?", part.strip()) for part in text.split(",")]
    if not all(parts):
        raise SubmitError(f"--ranks={text} is not a list of ranks, such as 0,3 or 0-3.")
    numbers = {n for part in parts if part for n in range(int(part[1]), int(part[2] or part[1]) + 1)}
    if not numbers or max(numbers) >= size:
        raise SubmitError(
            f"--ranks={text} names a rank that the run does not have: its ranks are 0-{size - 1}."
        )
    return sorted(numbers)


def debug(run: RunEntry, rank: int | None) -> None:
    """Print the stacks of all ranks, or of one. Raises SubmitError, SchedulerError."""
    find_job(run, what := "print its stacks")
    size = run.folder.read_info().get("world_size") or 1
    if rank is not None and rank >= size:
        raise SubmitError(f"it has no rank {rank}: its ranks are 0-{size - 1}.")
    hang_minutes: object = ""
    with suppress(CheckpointError, KeyError, TypeError):
        hang_minutes = read_frozen(run.folder)["monitor"]["hang_minutes"]
    if hang_minutes is None:
        raise SubmitError(
            "its ranks can't be asked: the hang watch reads the stacks, and this run has monitor.hang_minutes=null. "
            "On their node, `py-spy dump --pid PID` prints the stacks of a process; `jobs.py shell` opens a shell there."
        )
    wanted = {*range(size)} if rank is None else {rank}
    request, found = {"id": uuid.uuid4().hex}, dict[int, str]()

    def collect() -> bool | None:
        for answer in map(read_json, run.folder.monitor.glob("debug-*.json")):
            texts = answer.get("stacks")
            if answer.get("id") == request["id"] and isinstance(texts, dict):
                found.update((int(number), str(text)) for number, text in texts.items() if number.isdecimal())
        return wanted <= found.keys() or None

    ask(run, live.DEBUG, request, what, ANSWER_S, collect)
    for number in sorted(wanted & found.keys()):
        print(f"---- {run.folder.id}: {found[number].rstrip()}\n")
    if missing := sorted(wanted - found.keys()):
        hosts = listed(run.folder.read_info().get("hosts") or [])
        pbs = " On PBS only the first node is asked." if run.scheduler == "pbs" else ""
        raise SubmitError(
            f"no stacks of rank{'s' if len(missing) > 1 else ''} {listed(missing)} within {ANSWER_S:.0f} s (nodes: "
            f"{hosts or 'not known yet'}).{pbs} A rank has none before it starts to import a framework, nor on a node whose monitor "
            "does not run: see monitor/errors.txt in the run folder."
        )
