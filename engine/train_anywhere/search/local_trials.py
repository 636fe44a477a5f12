"""Trials as processes of this machine."""

import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from train_anywhere.config.command.compose import compose
from train_anywhere.config.command.members import load_members, refuse_unlike
from train_anywhere.config.flat import flatten
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import local_layout
from train_anywhere.files import ROOT, with_engine
from train_anywhere.files.ordinary import open_file
from train_anywhere.files.terminal.output import protect
from train_anywhere.launch.forkserver import Process
from train_anywhere.launch.leaving import rank_environment
from train_anywhere.launch.local_run import freeze, local_problems, resolved_numbers
from train_anywhere.launch.processes import ForkServers, beside, run_command
from train_anywhere.launch.rank import frozen
from train_anywhere.runs.folder import RunDir, claim, point_latest
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.reopen.resume import chosen_lines, saved_lines
from train_anywhere.runs.reopen.trust import refuse_foreign

LOG = "log.txt"
"""Output of a trial that runs beside others, in its run folder."""

STOPPED = ("completed", "failed", "cancelled")
"""States of a run that does not go on by itself and is not to be begun again."""


class Here:
    """Begins trials, and knows which have ended.

    Args:
        at_once: of several at once each has its own log.
    """

    pause = 0.2
    """Seconds between two looks."""

    def __init__(self, at_once: int) -> None:
        self._quiet = at_once > 1
        self._processes: dict[str, tuple[Process, ExitStack]] = {}
        self._servers = ForkServers()
        protect()

    def check(self, tree: Mapping[str, Any], words: Sequence[str]) -> Config:
        """The configuration of a trial. Raises ConfigError with all that is wrong with it."""
        refuse_unlike([tree], submitted=False)
        return load_members([tree], [words], local_problems)[0].config

    def shown(self, config: Config) -> str:
        """What a dry run prints."""
        whole = resolved_numbers(config, local_layout(config))
        return whole.rpartition("\n")[0]  # without its last line

    def begin(self, config: Config, words: Sequence[str], folder: Path) -> str:
        """Start a trial in a new run folder; returns where."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        run = claim(folder)
        freeze(run, config, words, local_layout(config))
        point_latest(folder.parent.parent, folder)
        return self._start(run, config)

    def again(self, run: RunDir) -> str:
        """Go on with a trial that was interrupted. Raises ConfigError: someone else has made its folder, see `runs/reopen/trust.py`."""
        known = flatten(compose(chosen_lines(saved_lines(run))))
        refuse_foreign(run.path, flatten(read_frozen(run)), known)
        return self._start(run, frozen(run))

    def _start(self, run: RunDir, config: Config) -> str:
        around, ranks = ExitStack(), local_layout(config).world_size
        start = self._servers.starter(config.framework, ranks)
        around.enter_context(beside(run, config, start))
        log = around.enter_context(open_file(run.path / LOG, "ab")) if self._quiet else None
        # in a session of its own: Ctrl-C reaches it once, from `stop`
        process = start(
            run_command(run, ranks),
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=with_engine(rank_environment()),
        )
        self._processes[run.id] = (process, around)
        return f"process {process.pid}"

    def ended(self, live: Sequence[RunDir]) -> dict[str, str]:
        """The state of each that trains no longer, by its id; `preempted` for one that is to be begun again."""
        found = {}
        for run in live:
            if run.id in self._processes and self._processes[run.id][0].poll() is None:
                continue
            process, around = self._processes.pop(run.id, (None, ExitStack()))
            around.close()
            state = str(run.info().get("state"))
            crashed = process is not None and state == "running"
            found[run.id] = state if state in STOPPED else "failed" if crashed else "preempted"
        return found

    def stop(self, run: RunDir) -> None:
        """Ask a trial to save and stop."""
        if run.id in self._processes:
            self._processes[run.id][0].send_signal(signal.SIGTERM)

    def interrupted(self, live: Sequence[RunDir]) -> str:
        """After Ctrl-C: all save and stop."""
        for run in live:
            if run.id in self._processes:
                self._processes[run.id][0].send_signal(signal.SIGINT)
        for run in live:
            if run.id in self._processes:
                self._processes[run.id][0].wait()
        self.ended(live)
        return f"{len(live)} trial{'s'[: len(live) != 1]} stopped with a checkpoint saved."
