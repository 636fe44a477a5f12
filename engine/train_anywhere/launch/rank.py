"""The entry point of one rank: read the frozen configuration, and train."""

import importlib
import os
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from train_anywhere.config.schema import Config
from train_anywhere.distributed.discover import discover
from train_anywhere.distributed.layout import running_strategy, take_share
from train_anywhere.distributed.network.addresses import prepare_network
from train_anywhere.distributed.topology import ZERO_EXIT_LAUNCHERS, Topology
from train_anywhere.errors import (
    INTERRUPTED,
    NOT_FINITE,
    REFUSED,
    STOPPED,
    CheckpointError,
    LostRankError,
    ProjectError,
    SignalsAsErrors,
)
from train_anywhere.features import Features, describe
from train_anywhere.files.terminal.output import keep_log, mark_lines, outlive_terminal, protect_output
from train_anywhere.files.terminal.printable import printable
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.launch import failure
from train_anywhere.launch.exits import catch_os_exit, end_now, follow_parent
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.monitor.live import Times
from train_anywhere.monitor.report import write_run_report
from train_anywhere.program.run_program import run_program
from train_anywhere.runs import summary
from train_anywhere.runs.attempts import Outcome, running_job
from train_anywhere.runs.folder import RunDir, open_run
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.provenance import read_versions
from train_anywhere.runs.recorder import RunRecorder, report_location, try_to_record_failure
from train_anywhere.runs.reopen.frozen import load_frozen, refuse_links


def run_rank(run: RunDir | str | Path) -> int:
    """Train as one rank of the run.

    Returns:
        The exit code. 0: the run is complete. `NOT_FINITE` (rank 0): complete, but the final loss is nan or inf. `STOPPED` (rank 0): a
        signal stopped training and a checkpoint was saved. `INTERRUPTED`: the same after Ctrl-C; under `ZERO_EXIT_LAUNCHERS` both are 0.
        1: training failed. `REFUSED`: another job trains in this run folder, or the folder or the environment is not usable.
    """
    protect_output()
    outlive_terminal()
    take_share()
    stop = Stop().install()
    parent = follow_parent()
    try:
        run = run if isinstance(run, RunDir) else open_run(run)
        config, topology = load_frozen(run), discover()
        if config.program:
            stop.reaction = "passing it on to the program."
            stop.watcher = None if topology.rank else parent  # `jobs.py cancel` signals rank 0
        if topology.rank:  # `[rank 3] `, by which users find them in the log
            mark_lines(f"[rank {topology.rank}] ")
        else:
            refuse_links(run)
        if config.cluster.scheduler == "none":
            keep_log(run.log)
        topology = prepare_network(topology)
        if run.read_info().get("state") == "completed":  # a chained job that starts after the last step
            print(f"{run.path} is complete.", flush=True)
            return 0
        failure.watch_threads(run, topology)
        if config.cluster.scheduler == "none":  # a job's script has exported them
            os.environ |= Features.of(config).unset_variables(os.environ)
        if config.monitor.ranks:
            report_location(run, topology)
        heartbeat = Heartbeat()
        heartbeat.open(run, topology)
        with closing(heartbeat), Features.of(config).in_rank(heartbeat):
            recorder = RunRecorder(run, Times(run, heartbeat)) if topology.rank == 0 else None
            with RunLock(run, recorder) if recorder else nullcontext():
                process = RankProcess(run, topology, stop, recorder, heartbeat)
                return run_program(config, process) if config.program else _run_locked(config, process)
    except LostRankError:
        end_now(1)  # it is reported, and its process group would wait for ranks that have ended
    except ProjectError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)
        return REFUSED


def _run_locked(config: Config, process: RankProcess) -> int:
    topology, recorder = process.topology, process.recorder
    if recorder:
        versions = read_versions(config.framework)
        devices = running_strategy(config, topology)[1]
        recorder.record_start(topology.world_size, devices=devices, versions=versions)
    try:
        with SignalsAsErrors(), catch_os_exit(lambda reason: try_to_record_failure(recorder, reason)):
            # the loop of the configured framework, the only one that is imported
            outcome: Outcome = import_framework_module(config.framework, "run").train(config, process)
    except BaseException as error:
        return _handle_failure(config, process, error)
    # only rank 0 reports how the run ended: a launcher kills all ranks when one exits with another code
    try:
        return _finish(config, recorder, topology, process.stop, outcome) if recorder else 0
    except CheckpointError as error:  # run.json was damaged while the run trained
        print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)
        return 1


def _finish(config: Config, recorder: RunRecorder, topology: Topology, stop: Stop, outcome: Outcome) -> int:
    """Record and print how the run ended, and return the exit code."""
    run, stopped = recorder.run, stop.requested
    recorded = recorder.record_end(outcome, stopped)
    print(summary.format_summary(run, config, stopped, write_run_report(config, run, describe)), flush=True)
    if not recorded:
        print(f"error: {summary.not_recorded_message(run, outcome.state)}", file=sys.stderr, flush=True)
        return 1
    if outcome.state == "completed":
        bad = config.trainer.detect_nan != "off" and summary.find_nonfinite_loss(outcome.metrics)
        return NOT_FINITE if bad else 0
    if topology.launched_by in ZERO_EXIT_LAUNCHERS:
        return 0
    return INTERRUPTED if stop.requested == "SIGINT" else STOPPED


def import_framework_module(framework: str, name: str) -> Any:
    """Import a module of one framework's training loop, such as `run`."""
    return importlib.import_module(f"train_anywhere.training.{framework}.{name}")


def _handle_failure(config: Config, process: RankProcess, error: BaseException) -> int:
    """Record and print a failure, and return the exit code.

    A supervisor that may restart the ranks finds the first cause, and writes the report of a run that ends. Raises LostRankError if this
    rank has lost another one, and has to end at once because the ranks may start again.
    """
    error = failure.missing_file_error(config, process.run, error) or error
    # on this machine no node is lost
    may_restart = "restarts" in Features.of(config) and bool(config.cluster.retries or running_job())
    try_to_record_failure(process.recorder, summary.describe_error(error))
    if process.recorder and not may_restart and (cause := failure.wait_for_cause(process.run, error)):
        try_to_record_failure(process.recorder, cause)
    written = process.recorder and not may_restart and not isinstance(error, ProjectError)
    report = write_run_report(config, process.run, describe) if written else []
    failure.report_failure(process.run, process.topology, error, report)
    if may_restart and failure.is_consequence(error):
        raise LostRankError("this rank has lost another one") from error
    for disconnect in process.disconnect:
        disconnect()
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
