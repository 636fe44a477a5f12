"""Where each rank is in its program when all hang: RUN/monitor/stacks-<host>-rank<N>.txt.

A rank writes the stacks of its threads at SIGUSR2, by Python's faulthandler, which needs no lock of Python's: it works while the
rank waits within a collective. A process that is stopped hears no signal; py-spy, where it is installed, reads its stacks from outside.
"""

import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.removal import remove_in
from train_anywhere.monitor.heartbeat import own
from train_anywhere.monitor.ranks import GONE, Seen, process_state

ANSWER_S = 2.0
"""Time for a rank to write its stacks."""

PY_SPY_S = 10.0

ENDING = ".stacks"
_open: list[IO[bytes]] = []


def register(beat: Path | None) -> None:
    """From here on this rank writes its stacks beside its heartbeat at SIGUSR2, unless the signal has another use already."""
    if beat is None or signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return
    with suppress(OSError):
        file = open(beat.with_name(beat.name + ENDING), "wb")  # noqa: SIM115
        _open[:] = [file]  # it must stay open
        faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
        own.stacks = 1
        own.at("importing")


def unregister(beat: Path | None) -> None:
    """The opposite; the signal is ignored from then on."""
    if _open:
        faulthandler.unregister(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        _open.pop().close()
    if beat and own.folder:
        with suppress(OSError):
            remove_in(own.folder, beat.name + ENDING)


def collect(ranks: Iterable[Seen], folder: Path) -> dict[int, str]:
    """The stacks of all ranks of this node, by rank.

    Args:
        folder: of their heartbeats.
    """
    there = [r for r in ranks if process_state(r.pid, r.started) != GONE]
    asked = [r for r in there if r.stacks and process_state(r.pid, r.started) not in "Tt"]
    files = {r.rank: folder / f"rank-{r.rank}{ENDING}" for r in asked}
    before = {r.rank: _size(files[r.rank]) for r in asked}
    for r in asked:
        with suppress(ProcessLookupError):
            os.kill(r.pid, signal.SIGUSR2)
    end = time.monotonic() + ANSWER_S
    while time.monotonic() < end and any(_size(files[n]) == before[n] for n in before):
        time.sleep(0.05)
    time.sleep(0.2)  # the last ones may still be writing
    said = {n: _after(files[n], before[n]) for n in before}
    return {r.rank: said.get(r.rank) or from_outside(r) for r in there}


def write(run_monitor: Path, ranks: Iterable[Seen], stacks: dict[int, str]) -> None:
    """Keep them in the run folder."""
    for r in ranks:
        if r.rank in stacks:
            head = f"rank {r.rank} on {r.host}, process {r.pid} (state {r.process}), {r.section} {r.place}, {r.step} steps done\n\n"
            with suppress(OSError):
                write_atomic(run_monitor / f"stacks-{r.host}-rank{r.rank}.txt", head + stacks[r.rank])


def from_outside(rank: Seen) -> str:
    """By py-spy, without stopping the process; or why there is nothing."""
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if not program:
        return "The process does not answer, and py-spy, which reads stacks from outside, is not installed: pip install py-spy\n"
    command = [program, "dump", "--nonblocking", "--pid", str(rank.pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PY_SPY_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"The process does not answer, and py-spy failed: {error}\n"
    return done.stdout or f"The process does not answer, and py-spy failed: {done.stderr}\n"


def top(stacks: str) -> str:
    """The innermost lines of the main thread: ranks that wait in one collective have the same."""
    blocks = [block for block in stacks.split("\n\n") if "File " in block or " (" in block]
    main = next(
        (b for b in blocks if "Current thread" in b or "MainThread" in b), blocks[-1] if blocks else ""
    )
    lines = [line.strip() for line in main.splitlines() if line.strip()]
    return "\n".join(lines[1:4])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _after(path: Path, size: int) -> str:
    try:
        return path.read_bytes()[size:].decode(errors="replace")
    except OSError:
        return ""
