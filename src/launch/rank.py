"""One rank of a run: read the frozen configuration, find out which rank this is, hand over to one framework's side."""

import importlib
import os
import socket
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path

from src.config.schema import Config, load
from src.distributed.discover import discover
from src.distributed.listening import stay_on_this_node
from src.distributed.topology import Topology
from src.errors import INTERRUPTED, NOT_FINITE, REFUSED, STOPPED, CheckpointError, ProjectError
from src.files.output import outlive_terminal, protect
from src.runs import attempts
from src.runs.folder import RunDir, now, open_run
from src.runs.frozen import read_frozen
from src.runs.lock import RunLock
from src.runs.outcome import Outcome
from src.runs.summary import not_finite, summary
from src.training.stop import Stop


def frozen(run: RunDir) -> Config:
    """The configuration that the run folder holds."""
    return load(read_frozen(run))


def run_rank(run: RunDir | str | Path) -> int:
    """Train as one rank of the run; returns the exit code.

    0: done. `NOT_FINITE` (rank 0): done, and the final loss is nan or inf. `STOPPED` (rank 0): a signal asked to stop and a
    checkpoint was saved. `INTERRUPTED`: the same after Ctrl-C. 1: failed. `REFUSED`: another job trains in this run folder, or
    the folder or the environment does not say what to train.
    """
    protect()
    outlive_terminal()
    stop = Stop().install()
    try:
        run = run if isinstance(run, RunDir) else open_run(run)
        config, topology = frozen(run), discover()
        stay_on_this_node(topology)
        if run.info().get("state") == "completed":  # a chained job that begins after the last step
            print(f"{run.path} is complete.", flush=True)
            return 0
        if config.monitor.ranks:
            print(describe_rank(topology) + "\n", end="", flush=True)  # in one piece: other ranks write too
        with RunLock(run) if topology.rank == 0 else nullcontext():
            return _run_locked(config, run, topology, stop)
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return REFUSED


def _run_locked(config: Config, run: RunDir, topology: Topology, stop: Stop) -> int:
    first = topology.rank == 0
    if first:
        record_start(run, topology)
    try:
        outcome = train(config, run, topology, stop)
    except BaseException as error:
        return _failed(run, first, error)
    # rank 0 alone reports how the run ended: a launcher kills all ranks when one exits with another code
    if not first:
        return 0
    record_end(run, outcome)
    attempts.end(run, stop.requested or outcome.state, outcome.step)
    print(summary(run, config, stop.requested), flush=True)
    if outcome.state == "completed":
        return NOT_FINITE if config.trainer.detect_nan != "off" and not_finite(outcome.metrics) else 0
    return INTERRUPTED if stop.requested == "SIGINT" else STOPPED


def train(config: Config, run: RunDir, topology: Topology, stop: Stop) -> Outcome:
    """Import one framework's side, and only that one, and train."""
    side = importlib.import_module(f"src.training.{config.framework}.run")
    outcome: Outcome = side.train(config, run, topology, stop)
    return outcome


def record_start(run: RunDir, topology: Topology) -> None:
    """Write into run.json what only the running job knows."""
    started = run.info().get("started", now())
    run.update(
        state="running",
        world_size=topology.world_size,
        hosts=hosts(),
        job_ids=job_ids(run),
        started=started,
        ended=None,
    )
    attempts.begin(run, running_job(), hosts())


def describe_rank(topology: Topology) -> str:
    """One line about this rank."""
    return (
        f"rank {topology.rank} of {topology.world_size}: local rank {topology.local_rank} of "
        f"{topology.local_world_size} on node {topology.node_rank} ({socket.gethostname()}), started by {topology.launched_by}"
    )


def hosts() -> list[str]:
    """The nodes of this job, by the batch script's TRAIN_HOSTS (host:tasks,...); without a job this machine."""
    listed = os.environ.get("TRAIN_HOSTS")
    return [h.rpartition(":")[0] for h in listed.split(",")] if listed else [socket.gethostname()]


def job_ids(run: RunDir) -> list[str]:
    """The jobs of this run: those that were submitted for it (jobs.txt), and the one that is running."""
    submitted = run.path / "jobs.txt"
    known = submitted.read_text().split() if submitted.exists() else []
    running = running_job()
    # jobs.txt has a member of an array as 7_2
    if running and running not in known and not os.environ.get("SLURM_ARRAY_JOB_ID"):
        known.append(running)
    return known


def running_job() -> str | None:
    """The job that this process runs in."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID")


def record_end(run: RunDir, outcome: Outcome) -> None:
    """Write the end of the run, or of this part of it, into run.json."""
    run.update(
        state=outcome.state,
        ended=now(),
        epoch=outcome.epoch,
        step=outcome.step,
        metrics=outcome.metrics,
        checkpoint=outcome.checkpoint,
    )


def _record_failure(run: RunDir) -> None:
    try:
        run.update(state="failed", ended=now())
        attempts.end(run, "failed")
    except (OSError, CheckpointError) as error:  # what ended the run, told next, may well be the same
        print(f"run.json does not say that the run failed: {error}", file=sys.stderr, flush=True)


def _failed(run: RunDir, first: bool, error: BaseException) -> int:
    if first:
        _record_failure(run)
    if isinstance(error, ProjectError):
        print(f"error: {error}", file=sys.stderr, flush=True)
    elif isinstance(error, KeyboardInterrupt):
        print("interrupted.", file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
