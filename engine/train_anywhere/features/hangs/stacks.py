"""The end and the stack traces of ranks that hang: RUN/monitor/stacks-<host>-rank<N>.txt.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.removal import remove_in
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.monitor.ranks import GONE, RankStatus, process_state
from train_anywhere.runs.attempts import KILLED, extend_newest, start_of_job
from train_anywhere.runs.folder import ATTEMPTS, RunDir, now

ANSWER_S, PY_SPY_S = 2.0, 10.0
"""Seconds for a rank to write its stacks, and for py-spy to read them."""

SUFFIX = ".stacks"


@contextmanager
def written_on_signal(heartbeat: Heartbeat) -> Iterator[None]:
    """Write the stacks of this rank on SIGUSR2 in the block, unless the signal has a handler. It is ignored from then on."""
    path, folder = heartbeat.path, heartbeat.folder
    if path is None or folder is None or signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        yield
        return
    name = path.name + SUFFIX
    try:
        with ExitStack() as stack:
            with suppress(OSError):
                file = stack.enter_context(open(path.with_name(name), "wb"))
                # what faulthandler restores after the block: the default would end the rank
                signal.signal(signal.SIGUSR2, signal.SIG_IGN)
                faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
                stack.callback(faulthandler.unregister, signal.SIGUSR2)
                heartbeat.stacks = 1
                heartbeat.at("importing")
            yield
    finally:
        with suppress(OSError):
            remove_in(folder, name)


def collect(ranks: Iterable[RankStatus], folder: Path) -> dict[int, str]:
    """Return the stacks of the ranks of this node, each below a line with its progress. `folder` holds their heartbeats."""
    states = {r: process_state(r.pid, r.started) for r in ranks}
    there = [r for r, state in states.items() if state != GONE]
    asked = [r for r in there if r.stacks and r.section != "program" and states[r] not in "Tt"]
    files = {r.rank: folder / f"rank-{r.rank}{SUFFIX}" for r in asked}
    before = {r.rank: _size(files[r.rank]) for r in asked}
    for r in asked:
        with suppress(ProcessLookupError):
            os.kill(r.pid, signal.SIGUSR2)
    end = time.monotonic() + ANSWER_S
    while time.monotonic() < end and any(_size(files[n]) == before[n] for n in before):
        time.sleep(0.05)
    time.sleep(0.2)  # the last ones may still be writing
    answers: dict[int, str] = {}
    for n, size in before.items():
        with suppress(OSError):
            answers[n] = files[n].read_bytes()[size:].decode(errors="replace")
    head = "rank {0.rank} on {0.host}, process {0.pid} (state {0.process}), {0.section} {0.place}, {0.step} steps done"
    return {r.rank: f"{head.format(r)}\n\n{answers.get(r.rank) or run_py_spy(r)}" for r in there}


def write(run_monitor: Path, ranks: Sequence[RankStatus], folder: Path) -> None:
    """Write the stacks of the ranks of this node to files in the run folder; `folder` holds their heartbeats."""
    hosts = {r.rank: r.host for r in ranks}
    for rank, text in collect(ranks, folder).items():
        with suppress(OSError):
            write_atomic(run_monitor / f"stacks-{hosts[rank]}-rank{rank}.txt", text)


def run_py_spy(rank: RankStatus) -> str:
    """Return the stacks that py-spy reads without stopping the process, or why it can't."""
    of_program = rank.section == "program"
    why = "A program can't be asked for its stacks" if of_program else "The process does not answer"
    installed = Path(sys.executable).with_name("py-spy")
    program = str(installed) if installed.exists() else shutil.which("py-spy")
    if not program:
        return f"{why}, and py-spy, which reads stacks from outside, is not installed: pip install py-spy\n"
    command = [program, "dump", "--nonblocking", "--pid", str(rank.pid)]
    command += ["--subprocesses"] if of_program else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PY_SPY_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{why}, and py-spy failed: {error}\n"
    return done.stdout or f"{why}, and py-spy failed: {done.stderr}\n"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


TIMES = 3
"""A run that hangs at the same step for the third time has failed: it would be requeued for ever."""

GRACE_S = 10.0
"""Seconds for killed processes to exit; a process that waits for a dead disk does not."""


def is_repeated_hang(hangs: Iterable[Mapping[str, Any]], step: int) -> bool:
    """Return whether another hang at `step` is the third without progress."""
    return sum(hang["step"] >= step for hang in hangs) >= TIMES - 1


def end_run(
    run: RunDir,
    ranks: Iterable[RankStatus],
    state: Literal["preempted", "failed"],
    node: str | None = None,
    **fields: Any,
) -> None:
    """Record how the run ended, with `fields`, and kill the ranks of this node, the first. `node` has hung for the second time.

    Rank 0 is stopped first, so that two processes never write the records. They are written before it is killed, since the batch
    script reads them as soon as the launcher exits.
    """
    there = list(ranks)
    send(there, signal.SIGSTOP)
    with suppress(OSError, CheckpointError):
        # unless rank 0 has not recorded the attempt yet
        trains = run.read_info().get("state") == "running"
        run.update(state=state, ended=now(), **({ATTEMPTS: extend_newest(run, **fields)} if trains else {}))
        write_atomic(run.monitor / KILLED, "\n".join([start_of_job(), *([node] if node else []), ""]))
    kill(there)


def kill(ranks: Iterable[RankStatus]) -> list[int]:
    """Kill ranks of this node, wait, and return the numbers of those that do not exit."""
    there = list(ranks)
    send(there, signal.SIGKILL)
    end = time.monotonic() + GRACE_S
    while alive := [r.rank for r in there if process_state(r.pid, r.started) != GONE]:
        if time.monotonic() >= end:
            break
        time.sleep(0.05)
    return alive


def send(ranks: Iterable[RankStatus], number: int) -> None:
    """Send a signal to ranks of this node, if their process id still belongs to them."""
    for rank in ranks:
        if process_state(rank.pid, rank.started) != GONE:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(rank.pid, number)
