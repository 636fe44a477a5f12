"""Stack traces of ranks that hang: RUN/monitor/stacks-<host>-rank<N>.txt.

On SIGUSR2 a rank writes the stacks of its threads with Python's faulthandler, which needs no Python lock and so works while the rank
waits in a collective operation. A stopped process handles no signal, and a program (src/run.py) knows nothing of this one: py-spy, if
installed, reads their stacks from outside.
"""

import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.removal import remove_in
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.monitor.ranks import GONE, RankStatus, process_state

ANSWER_S = 2.0
"""Seconds for a rank to write its stacks."""

PY_SPY_S = 10.0

SUFFIX = ".stacks"
_open_files: list[IO[bytes]] = []


def register(heartbeat: Heartbeat) -> None:
    """Make this rank write its stacks next to its heartbeat on SIGUSR2, unless the signal already has a handler."""
    if heartbeat.path is None or signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return
    with suppress(OSError):
        file = open(heartbeat.path.with_name(heartbeat.path.name + SUFFIX), "wb")  # noqa: SIM115
        _open_files[:] = [file]  # faulthandler needs it open
        faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
        heartbeat.stacks = 1
        heartbeat.at("importing")


def unregister(heartbeat: Heartbeat) -> None:
    """Undo `register`; the process ignores SIGUSR2 from then on."""
    if _open_files:
        faulthandler.unregister(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        _open_files.pop().close()
    if heartbeat.path and heartbeat.folder:
        with suppress(OSError):
            remove_in(heartbeat.folder, heartbeat.path.name + SUFFIX)


def collect(ranks: Iterable[RankStatus], folder: Path) -> dict[int, str]:
    """Return the stacks of all ranks of this node, by rank; `folder` holds their heartbeats."""
    there = [r for r in ranks if process_state(r.pid, r.started) != GONE]
    asked = [
        r
        for r in there
        if r.stacks and r.section != "program" and process_state(r.pid, r.started) not in "Tt"
    ]
    files = {r.rank: folder / f"rank-{r.rank}{SUFFIX}" for r in asked}
    before = {r.rank: _size(files[r.rank]) for r in asked}
    for r in asked:
        with suppress(ProcessLookupError):
            os.kill(r.pid, signal.SIGUSR2)
    end = time.monotonic() + ANSWER_S
    while time.monotonic() < end and any(_size(files[n]) == before[n] for n in before):
        time.sleep(0.05)
    time.sleep(0.2)  # the last ones may still be writing
    answers = {n: _read_from(files[n], before[n]) for n in before}
    return {r.rank: answers.get(r.rank) or run_py_spy(r) for r in there}


def write(run_monitor: Path, ranks: Sequence[RankStatus], stacks: Mapping[int, str]) -> None:
    """Write the stacks to files in the run folder."""
    hosts = {r.rank: r.host for r in ranks}
    for rank, text in describe(ranks, stacks).items():
        with suppress(OSError):
            write_atomic(run_monitor / f"stacks-{hosts[rank]}-rank{rank}.txt", text)


def describe(ranks: Iterable[RankStatus], stacks: Mapping[int, str]) -> dict[int, str]:
    """Return the stacks of each rank below a line with its number, host, process and progress."""
    head = "rank {0.rank} on {0.host}, process {0.pid} (state {0.process}), {0.section} {0.place}, {0.step} steps done"
    return {r.rank: f"{head.format(r)}\n\n{stacks[r.rank]}" for r in ranks if r.rank in stacks}


def run_py_spy(rank: RankStatus) -> str:
    """Return the stacks that py-spy reads without stopping the process, or a message with the reason if it can't."""
    why = (
        "A program can't be asked for its stacks"
        if rank.section == "program"
        else "The process does not answer"
    )
    installed = Path(sys.executable).with_name("py-spy")
    program = str(installed) if installed.exists() else shutil.which("py-spy")
    if not program:
        return f"{why}, and py-spy, which reads stacks from outside, is not installed: pip install py-spy\n"
    command = [program, "dump", "--nonblocking", "--pid", str(rank.pid)]
    command += ["--subprocesses"] if rank.section == "program" else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PY_SPY_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{why}, and py-spy failed: {error}\n"
    return done.stdout or f"{why}, and py-spy failed: {done.stderr}\n"


def top(stacks: str) -> str:
    """Return the innermost lines of the main thread, which are equal for ranks that wait in the same collective."""
    blocks = [block for block in stacks.split("\n\n") if "File " in block or " (" in block]
    main = [b for b in blocks if "Current thread" in b or "MainThread" in b] or blocks[-1:] or [""]
    lines = [line.strip() for line in main[0].splitlines() if line.strip()]
    return "\n".join(lines[1:4])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_from(path: Path, size: int) -> str:
    try:
        return path.read_bytes()[size:].decode(errors="replace")
    except OSError:
        return ""
