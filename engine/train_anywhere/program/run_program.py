"""One rank of a program: start it, show its output, pass signals on, record how it ended.

The launcher's signal may reach the program too, or only this process: with `proctrack/cgroup` Slurm signals the tasks of a job step
(https://slurm.schedmd.com/cgroup.conf.html, SignalChildrenProcesses), with other plugins all their descendants, Open MPI the process
group of a rank, a terminal the group in its foreground. So a second child, which any signal ends, shows whether the program got it.
"""

import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
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
    build_command,
    build_environment,
    open_output,
    prepare_child,
    working_folder,
)
from train_anywhere.program.program_metrics import ProgramMetrics
from train_anywhere.runs import attempts, summary
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.runs.recorder import try_to_record_failure

POLL_S = 0.2
"""Seconds between two looks at the program."""

WRITING_S = 5.0
"""A program that the signal would end, and that is writing a file, may complete it for so long."""

MOST_BYTES, REST_S, LINE_ENDS = 2**16, 0.1, (b"\n", b"\r")
"""Bytes read at once from the program, and seconds that the end of a line may take; a progress bar ends with \\r."""

STOP_SHARE = 0.8
"""Share of `cluster.signal_seconds` after which a program that ignores the signal is killed, so that its files can be copied."""

SPREAD_S, VERDICT_S = 0.3, 5.0
"""Seconds in which a launcher sends a signal to all processes, and in which USR1 follows a TERM if the job returns to the queue."""

OTHERS_S = 5.0
"""A rank that fails waits so long for the signal, or the failure of another rank, that may be the reason."""


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
        code = ProgramProcess(config, process, environ, copier, metrics).wait()
        code = 128 - code if code < 0 else code
        _copy_the_rest(copier, place, killed=code > 128)
    except BaseException as error:
        found = isinstance(error, NotFiniteError)
        if found and topology.world_size > 1:
            attempts.claim_first(run, attempts.CAUSE, summary.describe_error(error))
        try_to_record_failure(recorder, summary.describe_error(error))
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


class ProgramProcess:
    """The started program of this rank, with its output, the copies of its files, and its metrics.

    A single process stays in the process group of this one, and prints on a terminal like this one's. Raises ProjectError.
    """

    def __init__(
        self,
        config: Config,
        process: RankProcess,
        environ: dict[str, str],
        copier: Copier | None,
        metrics: ProgramMetrics | None,
    ) -> None:
        self.process, self.copier, self.metrics = process, copier, metrics
        topology, in_job = process.topology, attempts.running_job() is not None
        # a single process keeps a terminal: for progress bars, and for a debugger
        self._alone = alone = topology.world_size == 1 and (not in_job or os.isatty(1))
        # in a terminal only processes of its foreground group may read
        self._group = -1 if alone or os.isatty(0) else 0
        self._patience = STOP_SHARE * (config.cluster.signal_seconds or SIGNAL_S) if in_job else 60.0
        self._sent, self._heard = set[int](), threading.Event()
        again = _started_before(process) and any(process.run.checkpoints.iterdir())
        command = build_command(config, environ, topology, again)
        by_user = topology.launched_by == "none" and "TRAIN_PARENT" not in ENVIRON
        # both are one if they go to the same place, which keeps their order
        numbers = (1,) if alone and os.path.sameopenfile(1, 2) else (1, 2)
        pairs = [open_output(number) if alone and os.isatty(number) else os.pipe() for number in numbers]
        # it ends with this process, which closes its input
        self._witness = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=self._group
        )
        try:
            self.child = subprocess.Popen(
                command, env=environ, cwd=working_folder(config), stdout=pairs[0][1], stderr=pairs[-1][1],
                process_group=self._group, preexec_fn=partial(prepare_child, IGNORED if by_user else ()),
            )  # fmt: skip
        except OSError as error:  # such as a first line that names no interpreter
            self._close()
            name = config.program.command[0]
            raise ProjectError(
                f"{name} can't be started ({error.strerror}): does its first line name an interpreter that is "
                "installed here, such as #!/bin/bash?"
                if "/" in name
                else f"{name} can't be started ({error.strerror}): is it installed in this environment ({sys.prefix})?"
            ) from error
        finally:
            for _, written in pairs:
                os.close(written)
        self._early = self._witness.poll() is not None  # by a signal that may have come before the program
        self._threads = [
            threading.Thread(target=self._copy_output, args=(read, target.buffer), daemon=True)
            for (read, _), target in zip(pairs, (sys.stdout, sys.stderr), strict=False)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> int:
        """Wait for the end of the program, and return its exit code, negative for a signal.

        Raises NotFiniteError: its loss is nan or inf, and `trainer.detect_nan` is stop; the program has ended.
        """
        if self.copier:
            self.copier.start()
        self.process.heartbeat.enter("program")
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    self.child.wait(POLL_S)
                    break
                self._observe()
                self._pass_signal()
            for thread in self._threads:
                thread.join(OTHERS_S)  # processes left behind may keep the pipe open
            end_log_line()
            if self.metrics:
                self.metrics.read(last=True)
        except KeyboardInterrupt:  # the second Ctrl-C
            self._kill()
        except NotFiniteError:
            self._send(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.child.wait(WRITING_S)
            self._kill()
            raise
        finally:
            self._close()
        self.process.heartbeat.enter("end")
        return self.child.wait()

    def _copy_output(self, source: int, target: IO[bytes]) -> None:
        while data := _read(source):
            # the end of the line, which another rank would else interrupt
            while len(data) < MOST_BYTES and data[-1:] not in LINE_ENDS:
                if not (select([source], [], [], REST_S)[0] and (rest := _read(source))):
                    break
                data += rest
            self._heard.set()
            if self.metrics:
                self.metrics.feed(source, data)
            target.write(data)
            target.flush()

    def _observe(self) -> None:
        """Beat for the program, and read its metrics."""
        if self._heard.is_set() or self._alone:
            self.process.heartbeat.pulse()
        self._heard.clear()
        if self.metrics:
            self.metrics.read()

    def _pass_signal(self) -> None:
        """Send the signal that is due, and kill a program that ignores it."""
        received = self.process.stop.received
        waited = time.monotonic() - min(received.values(), default=math.inf)
        number = self._choose_signal()
        if number is None and waited <= self._patience:
            return
        writing = self.copier.find_open(self.child.pid) if self.copier else None
        # a program that the signal ends may first complete the file that it is writing
        patience = min(WRITING_S, self._patience / 2)
        if number and writing and waited <= patience and not self._handles(number):
            return
        if self.copier:
            self.copier.open = writing
        if number:
            self._send(number)
        else:
            why = "the program ignores the signal: killing it, to copy its files in time."
            print(why, file=sys.stderr, flush=True)
            self._kill(wait=False)
            self._patience = math.inf

    def _choose_signal(self) -> int | None:
        """Return the signal that is due for the program, or None.

        Each is due a moment after it has come, the same on all ranks, because the launcher may still be sending it to other processes.
        """
        received = self.process.stop.received
        # Slurm may have sent TERM, at a cancel or at a preemption, at which the job sends USR1 too
        waits = self.process.topology.launched_by == "srun" and self._handles(signal.SIGUSR1)
        for name, after in (("SIGINT", 0.0), ("SIGUSR1", 0.0), ("SIGTERM", VERDICT_S if waits else 0.0)):
            due = name in received and time.monotonic() >= received[name] + SPREAD_S + after
            if due and (not self._sent or (name == "SIGTERM" and signal.SIGTERM not in self._sent)):
                number = signal.Signals[name]
                return signal.SIGTERM if name == "SIGUSR1" and not self._handles(number) else number
        return None

    def _handles(self, number: int) -> bool:
        """Return whether the program has a handler for a signal, as /proc shows."""
        with suppress(OSError):
            status = Path(f"/proc/{self.child.pid}/status").read_text(errors="replace")
            if found := re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.M):
                return bool(int(found[1], 16) >> (number - 1) & 1)
        return False

    def _send(self, number: int) -> None:
        """Send a signal, unless the program has got it, or TERM, at the same time as this process."""
        self._sent.add(number)
        if self._early or -(self._witness.poll() or 0) not in (number, signal.SIGTERM):
            self.child.send_signal(number)

    def _kill(self, wait: bool = True) -> None:
        """Kill the program, and the processes that it has started if it does not run in a terminal."""
        if self._group == 0 and self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
        else:
            self.child.kill()
        if wait:
            self.child.wait()

    def _close(self) -> None:
        """End the second child."""
        self._witness.kill()
        self._witness.communicate()


def _started_before(process: RankProcess) -> bool:
    """Return whether this is not the first start of the run, the same on all ranks.

    The first start leaves its name. A single process has no other rank to agree with, and its starts may have the same name.
    """
    if process.topology.world_size == 1:
        return len(process.run.read_info().get(ATTEMPTS) or []) > 1
    name = f"{attempts.launch_id()} {os.environ.get('MASTER_PORT')}"
    file = process.run.monitor / "first_start"
    with suppress(OSError):
        make_folder(file.parent)
        if not file.exists():
            write_atomic(file, name)
        return read_text(file) != name
    return False


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
    bad = config.trainer.detect_nan != "off" and summary.find_nonfinite_loss(facts.get("metrics", {}))
    if state == "completed" and bad:
        return NOT_FINITE
    kills_others = several and stop.requested and topology.launched_by in ("srun", "local")
    if not stopped or kills_others or topology.launched_by in ZERO_EXIT_LAUNCHERS:
        return 0
    return INTERRUPTED if stop.requested == "SIGINT" else STOPPED
