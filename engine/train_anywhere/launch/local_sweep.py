"""A sweep on this machine: all members are checked first, then each runs in a new process, one after the other.

Each member has its own process, because frameworks keep global state: seeds, devices, graphs, threads. The process is a fork
of one that has imported the framework (launch/forkserver.py).
"""

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from subprocess import Popen
from typing import Any

from train_anywhere.config.command.members import load_members, refuse_mixed_members
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import local_layout
from train_anywhere.errors import STOPPED
from train_anywhere.files.terminal.fit import fit, terminal_width
from train_anywhere.files.terminal.output import protect_output
from train_anywhere.launch.local_run import format_dry_run, local_problems, make_run
from train_anywhere.launch.processes import ForkServers, run_here, run_monitor
from train_anywhere.runs.folder import RunDir, claim_sweep, new_run_id
from train_anywhere.training.stop import SIGNALS


@dataclass(frozen=True)
class FinishedMember:
    """A member that has run, with its exit code."""

    run: RunDir
    config: Config
    code: int


def run_all(trees: Sequence[Mapping[str, Any]], overrides: Sequence[Sequence[str]]) -> list[FinishedMember]:
    """Run each member, also after one has failed; a signal stops the sweep.

    Returns:
        The members that ran; none after a dry run.

    Raises:
        ConfigError: the problems of all members, before anything is written.
        KeyboardInterrupt: Ctrl-C, after the running member has saved a checkpoint.
        SystemExit: another signal, after the same.
    """
    refuse_mixed_members(trees, submitted=False)
    members = load_members(trees, overrides, local_problems)
    layouts = [local_layout(m.config) for m in members]
    shared = [w for w in overrides[0] if len(overrides) > 1 and all(w in words for words in overrides)]
    names = [" ".join(w.lstrip("+") for w in words if w not in shared) for words in overrides]
    if members[0].config.dry_run:
        numbers = [format_dry_run(m.config, layout) for m, layout in zip(members, layouts, strict=True)]
        print("\n\n".join(f"{name}\n{n}" for name, n in zip(names, numbers, strict=True)))
        return []
    protect_output()
    finished, servers, signals, sweep = [], ForkServers(), list[int](), new_run_id()
    for number, (member, layout) in enumerate(zip(members, layouts, strict=True), 1):
        print(fit(f"\n[{number}/{len(members)}] {names[number - 1]}", terminal_width()), flush=True)
        framework = member.config.framework
        # a program imports nothing of a framework here, and has the environment of a new interpreter
        start = Popen if member.config.program else servers.get_starter(framework, layout.world_size)
        run = make_run(member.config, member.overrides, layout, f"{sweep}-{number - 1}")
        claim_sweep(run)
        with run_monitor(run, member.config, start), _restore_handlers():
            code = run_here(run, layout, start, signals, member.config.cluster.retries)
            finished.append(FinishedMember(run, member.config, code))
        if signals:
            left = len(members) - number
            print(f"\nstopped at member {number} of {len(members)}; {left} did not start.", file=sys.stderr)
            break
    if signals:
        raise KeyboardInterrupt if signal.SIGINT in signals else SystemExit(STOPPED)
    failed = [name for name, one in zip(names, finished, strict=True) if one.code]
    if failed:
        message = f"\n{len(failed)} of {len(finished)} members failed: {'; '.join(failed)}"
        print(fit(message, terminal_width(sys.stderr)), file=sys.stderr)
    return finished


@contextlib.contextmanager
def _restore_handlers() -> Iterator[None]:
    """Restore the signal handlers that a member's launcher replaces, so that Ctrl-C between members stops the sweep."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
