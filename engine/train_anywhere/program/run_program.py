"""One rank of a program: start it, show its output, pass signals on, record how it ended."""

import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from select import select
from typing import IO

from train_anywhere import ENVIRON, IGNORED
from train_anywhere.config.checks.program import choose_processes
from train_anywhere.config.cluster import SIGNAL_S
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import visible_gpus
from train_anywhere.distributed.topology import ZERO_EXIT_LAUNCHERS
from train_anywhere.errors import INTERRUPTED, NOT_FINITE, STOPPED, NotFiniteError, ProjectError
from train_anywhere.features import describe
from train_anywhere.files.atomic import make_folder, read_text, write_atomic
from train_anywhere.files.copy_files import EVERY_S, Copier, copy_leftovers
from train_anywhere.files.node_disk import find_run_folder, rank_folder
from train_anywhere.files.removal import OwnedFolder, make_owned, remove
from train_anywhere.files.terminal.output import end_log_line
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.job.rank_process import RankProcess
from train_anywhere.monitor.report import write_run_report
from train_anywhere.program.program_environment import (
    ProgramProcess,
    build_command,
    build_environment,
    working_folder,
)
from train_anywhere.program.program_metrics import ProgramMetrics
from train_anywhere.runs import attempts, summary
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.runs.recorder import try_to_record_failure
from train_anywhere.runs.summary import describe_error, find_nonfinite_loss

POLL_S, RECORD_S = 0.2, 10.0
"""Seconds between two looks at the program, and two records of the time."""

OTHERS_S = 5.0
"""A rank that fails waits so long for the signal, or the failure of another rank, that may be the reason."""

WRITING_S = 5.0
"""A program that the signal would end, and that is writing a file, may complete it for so long."""

MOST_BYTES, REST_S, LINE_ENDS = 2**16, 0.1, (b"\n", b"\r")
"""Bytes read at once from the program, and seconds that the end of a line may take; a progress bar ends with \\r."""

STOP_SHARE = 0.8
"""Share of `cluster.signal_seconds` after which a program that ignores the signal is killed, so that its files can be copied."""


def run_program(config: Config, process: RankProcess) -> int:
    """Run the program as one rank.

    Returns:
        The exit code. 0: it ended with 0, or, on other ranks than 0, it was stopped. `STOPPED` (rank 0): a signal stopped it, or it exited
        with this code itself, to be started again. `INTERRUPTED`: the same after Ctrl-C. Both are 0 under a launcher that would kill
        the other ranks, which may still save; the batch script reads the recorded state. Else its own exit code.

    Raises:
        ProjectError: the program can't be started.
    """
    run, topology, recorder = process.run, process.topology, process.recorder
    processes = choose_processes(config, topology.world_size)
    if recorder:
        gpus = visible_gpus() if config.trainer.accelerator != "cpu" and processes != "rank" else 0
        recorder.record_start(topology.world_size, devices=max(topology.world_size, gpus * topology.nodes))
    elif processes == "one":
        return 0
    metrics = ProgramMetrics(config, process) if recorder else None
    try:
        place = _open_local_folder(config, run, topology.rank)
        local = place.path if place else None
        make_folder(run.checkpoints)
        environ = build_environment(config, topology, run, local)
        every = config.checkpoint.every_n_seconds or EVERY_S
        copier = Copier(local, run.checkpoints, every) if local else None
        code = _RunningProgram(config, process, environ, copier, metrics).wait()
        code = 128 - code if code < 0 else code
        _copy_the_rest(copier, place, killed=code > 128)
    except BaseException as error:
        found = isinstance(error, NotFiniteError)
        if found and topology.world_size > 1:
            attempts.claim_first(run, attempts.CAUSE, describe_error(error))
        try_to_record_failure(recorder, describe_error(error))
        if not found:
            raise
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        if metrics:
            metrics.close()
    return _finish(config, process, code, metrics)


def _open_local_folder(config: Config, run: RunDir, rank: int) -> OwnedFolder | None:
    """Return the rank's empty folder on its node's disk, if it can have one."""
    if (local := find_run_folder(run.path, config.checkpoint.local)) is None:
        return None
    place = rank_folder(local, rank)
    try:
        # of an attempt that was killed here
        why = copy_leftovers(place, run.checkpoints) if place.path.is_dir() else ""
        if not why:
            make_owned(place, private=True)
            return place
    except OSError as error:
        why = f"{place.path} can't be used ({error.strerror or error})"
    print(f"{why}; continuing without it.", file=sys.stderr, flush=True)
    return None


def _copy_the_rest(copier: Copier | None, place: OwnedFolder | None, killed: bool) -> None:
    """Copy the last files, and remove the folder unless some could not be copied."""
    if copier is None or place is None:
        return
    left = copier.finish(killed)
    if left:
        names = f"{', '.join(left[:3])}{' ...' if len(left) > 3 else ''} of {copier.source}"
        why = "which the program was writing when it was killed; earlier copies stay."
        print(f"not copied to {copier.target}: {names}, {why}", file=sys.stderr, flush=True)
    if copier.failed:
        print(f"error: {copier.describe_failed()}.", file=sys.stderr, flush=True)
    else:
        remove(place)


def started_before(run: RunDir, process: RankProcess) -> bool:
    """Return whether this is not the first start of the run, the same on all ranks.

    The first start leaves its name. A single process has no other rank to agree with, and its starts may have the same name.
    """
    if process.topology.world_size == 1:
        return len(run.read_info().get(ATTEMPTS) or []) > 1
    file, name = run.monitor / "first_start", f"{attempts.launch_id()} {os.environ.get('MASTER_PORT')}"
    with suppress(OSError):
        make_folder(run.monitor)
        if not file.exists():
            write_atomic(file, name)
        return read_text(file) != name
    return False


def _start(config: Config, process: RankProcess, environ: dict[str, str], alone: bool) -> ProgramProcess:
    """Start the program, again if an earlier start has left a checkpoint. Raises ProjectError."""
    again = started_before(process.run, process) and any(process.run.checkpoints.iterdir())
    by_user = process.topology.launched_by == "none" and "TRAIN_PARENT" not in ENVIRON
    command = build_command(config, environ, process.topology, again)
    try:
        return ProgramProcess(command, environ, alone, working_folder(config), IGNORED if by_user else ())
    except OSError as error:  # such as a first line that names no interpreter
        name = config.program.command[0]
        raise ProjectError(
            f"{name} can't be started ({error.strerror}): does its first line name an interpreter that is "
            "installed here, such as #!/bin/bash?"
            if "/" in name
            else f"{name} can't be started ({error.strerror}): is it installed in this environment ({sys.prefix})?"
        ) from error


class _RunningProgram:
    """The started program of this rank, with its output, the copies of its files, and its metrics. Raises ProjectError."""

    def __init__(
        self,
        config: Config,
        process: RankProcess,
        environ: dict[str, str],
        copier: Copier | None,
        metrics: ProgramMetrics | None,
    ) -> None:
        self.process, self.copier, self.metrics = process, copier, metrics
        # a single process keeps a terminal: for progress bars, and for a debugger
        self._alone = process.topology.world_size == 1 and (attempts.running_job() is None or os.isatty(1))
        self.program = _start(config, process, environ, self._alone)
        self._output = _Output(self.program.outputs, metrics)
        if copier:
            copier.start()
        seconds = config.cluster.signal_seconds or SIGNAL_S
        self._patience = STOP_SHARE * seconds if attempts.running_job() else 60.0
        self._recorded = time.monotonic()

    def wait(self) -> int:
        """Wait for the end of the program, and return its exit code, negative for a signal.

        Raises NotFiniteError: its loss is nan or inf, and `trainer.detect_nan` is stop; the program has ended.
        """
        self.process.heartbeat.enter("program")
        child = self.program.child
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(POLL_S)
                    break
                self._observe()
                self._pass_signal()
            self._output.finish()
            if self.metrics:
                self.metrics.read(last=True)
        except KeyboardInterrupt:  # the second Ctrl-C
            self._kill()
        except NotFiniteError:
            self.program.pass_on(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(WRITING_S)
            self._kill()
            raise
        finally:
            self.program.close()
        self.process.heartbeat.enter("end")
        return child.returncode

    def _kill(self) -> None:
        self.program.kill()
        self.program.child.wait()

    def _observe(self) -> None:
        """Beat for the program, and record its metrics and its time."""
        now = time.monotonic()
        if self._output.heard.is_set() or self._alone:
            self.process.heartbeat.pulse()
        self._output.heard.clear()
        if self.metrics:
            self.metrics.read()
        if self.process.recorder and now - self._recorded > RECORD_S:
            self.process.recorder.record_progress()
            self._recorded = now

    def _pass_signal(self) -> None:
        received = self.process.stop.received
        waited = time.monotonic() - min(received.values(), default=math.inf)
        number = self.program.choose_signal(received, waits=self.process.topology.launched_by == "srun")
        if number is None and waited <= self._patience:
            return
        writing = self.copier.find_open(self.program.child.pid) if self.copier else None
        # a program that the signal ends may first complete the file that it is writing
        patience = min(WRITING_S, self._patience / 2)
        if number and writing and waited <= patience and not self.program.handles(number):
            return
        if self.copier:
            self.copier.open = writing
        if number:
            self.program.pass_on(number)
        else:
            why = "the program ignores the signal: killing it, to copy its files in time."
            print(why, file=sys.stderr, flush=True)
            self.program.kill()
            self._patience = math.inf


class _Output:
    """The output of the program, copied to that of this process; `heard` is set by each part."""

    def __init__(self, sources: Sequence[int], metrics: ProgramMetrics | None) -> None:
        self.heard, self._metrics = threading.Event(), metrics
        self._threads = [
            threading.Thread(target=self._copy, args=(source, target.buffer), daemon=True)
            for source, target in zip(sources, (sys.stdout, sys.stderr), strict=False)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Wait for the last output. Processes left behind may keep the pipe open."""
        for thread in self._threads:
            thread.join(OTHERS_S)
        end_log_line()

    def _copy(self, source: int, target: IO[bytes]) -> None:
        while data := _read(source):
            # the end of the line, which another rank would else interrupt
            while len(data) < MOST_BYTES and data[-1:] not in LINE_ENDS:
                if not (select([source], [], [], REST_S)[0] and (rest := _read(source))):
                    break
                data += rest
            self.heard.set()
            if self._metrics:
                self._metrics.feed(target.name if hasattr(target, "name") else str(id(target)), data)
            target.write(data)
            target.flush()


def _read(source: int) -> bytes:
    """Return what a pipe or a terminal has; empty at its end, which is an error of a terminal."""
    with suppress(OSError):
        return os.read(source, MOST_BYTES)
    return b""


def _finish(config: Config, process: RankProcess, code: int, metrics: ProgramMetrics | None = None) -> int:
    """Record and print how the program ended, and return the exit code of this rank."""
    run, topology, stop, recorder = process.run, process.topology, process.stop, process.recorder
    several = topology.world_size > 1
    if several and code not in (0, STOPPED):
        # for the failure of another rank, or a signal, that may be the reason
        end = time.monotonic() + OTHERS_S
        while time.monotonic() < end and not (stop.requested or attempts.read_claim(run, attempts.CAUSE)):
            time.sleep(0.1)
    # a single rank claims nothing: a resumed run may have the same launch_id
    failed = several and bool(attempts.read_claim(run, attempts.CAUSE))
    stopped = code == STOPPED or (stop.requested is not None and not failed)
    if not stopped and code:
        memory = ", often the memory limit" if code == 128 + signal.SIGKILL else ""
        name = shlex.join(config.program.command[: 2 if config.program.command[0] == "-m" else 1])
        reason = f"rank {topology.rank}: {name} ended with {attempts.describe_exit_code(code)}{memory}"
        print(f"{reason}.", file=sys.stderr, flush=True)
        if several or attempts.running_job():  # in a job, job/restart.py reads it
            reason = attempts.claim_first(run, attempts.CAUSE, reason)
        try_to_record_failure(recorder, one_line(reason[: summary.MOST_CHARACTERS]))
        return code
    if recorder is None:
        return 0
    if stopped:
        state, ended_by = "preempted", stop.requested or "exit code 75"
    else:  # the other ranks of a job may still fail: the batch script records that it is complete
        state, ended_by = "running" if several else "completed", "completed"
    facts = metrics.facts() if metrics and metrics.step is not None else {}
    if not recorder.record_program_end(state, ended_by, **facts):
        print(f"error: {summary.not_recorded_message(run, state)}", file=sys.stderr, flush=True)
        return 1
    print(f"\n{'Run folder:':<15}{summary.display_path(run.path)}", flush=True)
    if facts:
        for line in write_run_report(config, run, describe):
            print(line, flush=True)
    elif metrics and metrics.pattern:
        print(f"{'Next:':<15}add this key, which draws the losses that it prints:")
        print(f"    'program.metrics={metrics.pattern}'", flush=True)
    bad = config.trainer.detect_nan != "off" and find_nonfinite_loss(facts.get("metrics", {}))
    if state == "completed" and bad:
        return NOT_FINITE
    kills_others = several and stop.requested and topology.launched_by in ("srun", "local")
    if not stopped or kills_others or topology.launched_by in ZERO_EXIT_LAUNCHERS:
        return 0
    return INTERRUPTED if stop.requested == "SIGINT" else STOPPED
