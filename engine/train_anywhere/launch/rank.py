"""One rank of a run: read the frozen configuration, find out which rank this is, and train with one framework."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.distributed.discover import discover
from train_anywhere.distributed.layout import running_strategy
from train_anywhere.distributed.network.addresses import prepare_network
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import (
    INTERRUPTED,
    NOT_FINITE,
    REFUSED,
    STOPPED,
    CheckpointError,
    ProjectError,
    SignalsAsErrors,
)
from train_anywhere.features import Features
from train_anywhere.files.terminal.output import mark_lines, outlive_terminal, protect
from train_anywhere.files.terminal.printable import printable
from train_anywhere.launch.failure import tell as tell_failure
from train_anywhere.launch.failure import watch_threads
from train_anywhere.launch.leaving import follow_parent, reported_exits
from train_anywhere.monitor.heartbeat import own as heartbeat
from train_anywhere.monitor.times import Times
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.folder import RunDir, open_run
from train_anywhere.runs.links import refuse_links
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.rank_reports import report_place
from train_anywhere.runs.recorder import RunRecorder
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.summary import not_finite, not_recorded, summary
from train_anywhere.training.stop import Stop

ALARMED = (
    "torchrun",
    "mpirun",
    "horovodrun",
)
"""Launchers that print a page about any exit code but 0, and change it. The batch script reads the state that rank 0 recorded."""


def frozen(run: RunDir) -> Config:
    """The configuration that the run folder holds."""
    return load(read_frozen(run))


def run_rank(run: RunDir | str | Path) -> int:
    """Train as one rank of the run; returns the exit code.

    0: done. `NOT_FINITE` (rank 0): done, and the final loss is nan or inf. `STOPPED` (rank 0): a signal asked to stop and a
    checkpoint was saved. `INTERRUPTED`: the same after Ctrl-C; both are 0 under a launcher that is `ALARMED`. 1: failed.
    `REFUSED`: another job trains in this run folder, or the folder or the environment does not say what to train.
    """
    protect()
    outlive_terminal()
    stop = Stop().install()
    follow_parent()
    try:
        run = run if isinstance(run, RunDir) else open_run(run)
        config, topology = frozen(run), discover()
        if topology.rank:  # `jobs.py logs --rank` reads this mark
            mark_lines(f"[rank {topology.rank}] ")
        else:
            refuse_links(run)
        topology = prepare_network(topology)
        if run.info().get("state") == "completed":  # a chained job that begins after the last step
            print(f"{run.path} is complete.", flush=True)
            return 0
        watch_threads(run, topology)
        if config.monitor.ranks:
            report_place(run, topology)
        with visible(config, run, topology):
            recorder = RunRecorder(run, Times(run)) if topology.rank == 0 else None
            with RunLock(run, recorder) if recorder else nullcontext():
                return _run_locked(config, run, topology, stop, recorder)
    except ProjectError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)
        return REFUSED


def _run_locked(
    config: Config, run: RunDir, topology: Topology, stop: Stop, recorder: RunRecorder | None
) -> int:
    if recorder:
        recorder.start(topology.world_size, devices=running_strategy(config, topology)[1])
    try:
        with SignalsAsErrors(), reported_exits(lambda: _try_to_record_failure(recorder)):
            outcome = train(config, run, topology, stop, recorder)
    except BaseException as error:
        return _failed(run, topology, error, recorder)
    # rank 0 alone reports how the run ended: a launcher kills all ranks when one exits with another code
    try:
        return _finish(config, recorder, topology, stop, outcome) if recorder else 0
    except CheckpointError as error:  # run.json was damaged while the run trained
        print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)
        return 1


def _finish(config: Config, recorder: RunRecorder, topology: Topology, stop: Stop, outcome: Outcome) -> int:
    """Record and report how the run ended; returns the exit code."""
    run, recorded = recorder.run, recorder.end(outcome, stop.requested)
    print(summary(run, config, stop.requested), flush=True)
    tell(run, config)
    if not recorded:
        print(f"error: {not_recorded(run, outcome.state)}", file=sys.stderr, flush=True)
        return 1
    if outcome.state == "completed":
        return NOT_FINITE if config.trainer.detect_nan != "off" and not_finite(outcome.metrics) else 0
    if topology.launched_by in ALARMED:
        return 0
    return INTERRUPTED if stop.requested == "SIGINT" else STOPPED


@contextmanager
def visible(config: Config, run: RunDir, topology: Topology) -> Iterator[None]:
    """Within, the side process of this node sees what this rank does."""
    beat = heartbeat.begin(run, topology)
    try:
        with Features.of(config).in_rank(beat):
            yield
    finally:
        heartbeat.end()


def tell(run: RunDir, config: Config) -> None:
    """Write the report and print its verdicts; what goes wrong with it is a line, and changes nothing about the run."""
    if not config.monitor.report or config.trainer.fast_dev_run:
        return
    try:
        from train_anywhere.monitor.report.page import write_report

        print(printable("\n".join(write_report(run))), flush=True)
    except Exception as error:
        print(f"The report was not written: {error}", file=sys.stderr, flush=True)


def train(
    config: Config, run: RunDir, topology: Topology, stop: Stop, recorder: RunRecorder | None = None
) -> Outcome:
    """Import the training loop of one framework, and of no other, and train."""
    outcome: Outcome = side(config.framework, "run").train(config, run, topology, stop, recorder)
    return outcome


def side(framework: str, name: str) -> Any:
    """A module of the training loop of one framework, such as its `run`."""
    return importlib.import_module(f"train_anywhere.training.{framework}.{name}")


def _try_to_record_failure(recorder: RunRecorder | None) -> None:
    try:
        if recorder:
            recorder.failure()
    except (OSError, CheckpointError) as error:  # likely the error that ended the run, which is printed next
        print(f"run.json does not record that the run failed: {error}", file=sys.stderr, flush=True)


def _failed(run: RunDir, topology: Topology, error: BaseException, recorder: RunRecorder | None) -> int:
    _try_to_record_failure(recorder)
    tell_failure(run, topology, error)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
