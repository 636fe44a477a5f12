"""Trials as processes of this machine."""

import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import Any

from train_anywhere.config.command.compose import compose
from train_anywhere.config.command.members import load_members, refuse_mixed_members
from train_anywhere.config.keys import flatten
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import local_layout
from train_anywhere.files import ROOT, with_engine
from train_anywhere.files.ordinary import open_file
from train_anywhere.files.terminal.output import protect_output
from train_anywhere.launch.exits import rank_environment
from train_anywhere.launch.forkserver import Process
from train_anywhere.launch.local_run import format_dry_run, freeze, local_problems
from train_anywhere.launch.processes import ForkServers, build_rank_command, run_monitor
from train_anywhere.launch.rank import load_frozen
from train_anywhere.runs.attempts import IDLE, describe_state
from train_anywhere.runs.folder import ATTEMPTS, RunDir, claim, point_latest
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.reopen.resume import read_run_overrides, select_group_choices
from train_anywhere.runs.reopen.trust import refuse_untrusted

LOG = "log.txt"
"""File in the run folder with the output of a trial, if several run at once."""

ENDED_STATES = ("completed", "failed", "cancelled", "interrupted")
"""States of a run that has ended and must not be started again."""


class LocalTrials:
    """Starter of trials, which also reads their states.

    Args:
        at_once: number of trials at once; with more than 1 each has its own log.
    """

    pause = 0.2
    """Seconds between two checks of the processes."""

    def __init__(self, at_once: int) -> None:
        self._quiet = at_once > 1
        self._processes: dict[str, tuple[Process, ExitStack]] = {}
        self._servers = ForkServers()
        protect_output()

    def check(self, tree: Mapping[str, Any], words: Sequence[str]) -> Config:
        """Return the configuration of a trial. Raises ConfigError with all of its problems."""
        refuse_mixed_members([tree], submitted=False)
        return load_members([tree], [words], local_problems)[0].config

    def format_dry_run(self, config: Config) -> str:
        """Return the lines that a dry run prints, without its last line."""
        return format_dry_run(config, local_layout(config)).rpartition("\n")[0]

    def start(self, config: Config, words: Sequence[str], folder: Path) -> str:
        """Start a trial in a new run folder; return its process for the log."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        run = claim(folder)
        freeze(run, config, words, local_layout(config))
        point_latest(folder.parent.parent, folder)
        return self._start(run, config)

    def resume(self, run: RunDir) -> str:
        """Resume an interrupted trial. Raises ConfigError if its folder has untrusted values, see `runs/reopen/trust.py`."""
        known = flatten(compose(select_group_choices(read_run_overrides(run))))
        refuse_untrusted(run.path, flatten(read_frozen(run)), known)
        return self._start(run, load_frozen(run))

    def _start(self, run: RunDir, config: Config) -> str:
        contexts, ranks = ExitStack(), local_layout(config).world_size
        start = Popen if config.program else self._servers.get_starter(config.framework, ranks)
        contexts.enter_context(run_monitor(run, config, start))
        log = contexts.enter_context(open_file(run.path / LOG, "ab")) if self._quiet else None
        # a new session, so that Ctrl-C reaches the process only once, from `handle_interrupt`
        process = start(
            build_rank_command(run, supervised=ranks > 1 or bool(config.cluster.retries)),
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=with_engine(rank_environment()),
        )
        self._processes[run.id] = (process, contexts)
        return f"process {process.pid}"

    def read_ended(self, live: Sequence[RunDir]) -> dict[str, str]:
        """Return the states of the trials that have stopped, by run id; `preempted` for one that must be resumed."""
        found = {}
        for run in live:
            if run.id in self._processes and self._processes[run.id][0].poll() is None:
                continue
            process, contexts = self._processes.pop(run.id, (None, ExitStack()))
            contexts.close()
            info = run.read_info()
            state = str(info.get("state"))
            if (info.get(ATTEMPTS) or [{}])[-1].get("ended_by") == IDLE:
                state = describe_state(state, info)
            crashed = process is not None and state == "running"
            found[run.id] = state if state in ENDED_STATES else "failed" if crashed else "preempted"
        return found

    def stop(self, run: RunDir) -> None:
        """Signal a trial to save a checkpoint and stop."""
        if run.id in self._processes:
            self._processes[run.id][0].send_signal(signal.SIGTERM)

    def handle_interrupt(self, live: Sequence[RunDir]) -> str:
        """Stop all trials after Ctrl-C, each with a checkpoint, and return the message."""
        for run in live:
            if run.id in self._processes:
                self._processes[run.id][0].send_signal(signal.SIGINT)
        for run in live:
            if run.id in self._processes:
                self._processes[run.id][0].wait()
        self.read_ended(live)
        saved = sum((run.checkpoints / "newest").exists() for run in live)
        return f"{len(live)} trial{'s'[: len(live) != 1]} stopped, {saved} with a checkpoint saved."
