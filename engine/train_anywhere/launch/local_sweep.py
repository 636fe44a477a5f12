"""A sweep on this machine: all members are checked first, then each runs in a process of its own, one after the other.

A process per member, because frameworks keep global state: seeds, devices, graphs, threads. It is a fork of a process that
has imported the framework (launch/forkserver.py).
"""

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train_anywhere.config.command.members import load_members, refuse_unlike
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import local_layout
from train_anywhere.errors import STOPPED
from train_anywhere.files.terminal.output import protect
from train_anywhere.launch.local_run import local_problems, make_run, resolved_numbers
from train_anywhere.launch.processes import ForkServers, beside, run_here
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.stop import SIGNALS


@dataclass(frozen=True)
class Ended:
    """A member that has run.

    Attributes:
        code: its exit code.
    """

    run: RunDir
    config: Config
    code: int


def run_all(trees: Sequence[Mapping[str, Any]], overrides: Sequence[Sequence[str]]) -> list[Ended]:
    """Run each member; a failure does not stop the next, a signal does.

    Returns:
        One for each member that ran; none of a dry run.

    Raises:
        ConfigError: the problems of all members, before anything is written.
        KeyboardInterrupt: Ctrl-C, once the member that ran has saved a checkpoint.
        SystemExit: another signal, likewise.
    """
    refuse_unlike(trees, submitted=False)
    members = load_members(trees, overrides, local_problems)
    layouts = [local_layout(m.config) for m in members]
    if members[0].config.dry_run:
        numbers = [resolved_numbers(m.config, layout) for m, layout in zip(members, layouts, strict=True)]
        print("\n\n".join(f"{' '.join(o)}\n{n}" for o, n in zip(overrides, numbers, strict=True)))
        return []
    protect()
    ended, servers, signals = [], ForkServers(), list[int]()
    for number, (member, layout) in enumerate(zip(members, layouts, strict=True), 1):
        print(f"\n[{number}/{len(members)}] {' '.join(member.overrides)}", flush=True)
        start = servers.starter(member.config.framework, layout.world_size)
        run = make_run(member.config, member.overrides, layout)
        with beside(run, member.config, start), _handlers_put_back():
            ended.append(Ended(run, member.config, run_here(run, layout, start, signals)))
        if signals:
            left = len(members) - number
            print(f"\nstopped at member {number} of {len(members)}; {left} did not start.", file=sys.stderr)
            break
    if signals:
        raise KeyboardInterrupt if signal.SIGINT in signals else SystemExit(STOPPED)
    failed = [" ".join(o) for o, one in zip(overrides, ended, strict=True) if one.code]
    if failed:
        print(f"\n{len(failed)} of {len(ended)} members failed: {'; '.join(failed)}", file=sys.stderr)
    return ended


@contextlib.contextmanager
def _handlers_put_back() -> Iterator[None]:
    """Put the handlers of signals back that a member's launcher replaces: between members, Ctrl-C ends the sweep."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
