"""The side process of one node: `python -m train_anywhere.monitor.node RUN [PARENT]`.

It can't hurt the ranks, and ends when its input does.
"""

import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.distributed.network.addresses import node_name
from train_anywhere.features import Features
from train_anywhere.features.feature import Part
from train_anywhere.files.ordinary import make_folder, open_file
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import read_frozen

CHECK_EVERY_S = 1.0
"""Time between two looks at whether the parent lives; the end of the input is seen at once."""


NICE = 10
"""A tenth of the share that a rank gets of a CPU they both want; at 19, a hundredth, it would stand still where every CPU is busy."""

CLOSING_S = 0.5
"""How long the end waits for a part that is at work."""


def main(arguments: Sequence[str]) -> int:
    """Look after this node until the run's job ends; always 0.

    Args:
        arguments: the run folder, and the process id of the parent where the parent knows it.
    """
    lower()
    parent = int(arguments[1]) if len(arguments) > 1 else os.getppid()
    run = RunDir(Path(arguments[0]))
    look_after(parts_of(run, load(read_frozen(run))), lambda: ended(parent), run)
    return 0


def parts_of(run: RunDir, config: Config) -> list[Part]:
    """Return the parts of this node's side process; one that can't be made is left out."""
    parts: list[Part] = []
    for make in Features.of(config).parts(run, node_name()):
        attempted(lambda make=make: parts.append(make()), run)  # type: ignore[misc]
    return parts


def look_after(parts: list[Part], done: Callable[[], bool], run: RunDir) -> None:
    """Call each part when it is due, until `done`. Each has a thread: a GPU that does not answer must not stop the watch.

    Args:
        done: waits a moment; true where the side process has to end.
    """
    stop = threading.Event()
    threads = [threading.Thread(target=_repeat, args=(part, stop, run), daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads) and not done():
            pass
    finally:
        stop.set()
        for part, thread in zip(parts, threads, strict=True):
            thread.join(CLOSING_S)
            attempted(part.close, run)


def _repeat(part: Part, stop: threading.Event, run: RunDir) -> None:
    while not stop.wait(part.every_seconds) and attempted(lambda: part.look(time.time()), run):
        pass


def attempted(do: Callable[[], None], run: RunDir) -> bool:
    """Whether it went well, or a disk refused; any other error is kept in a file of the run folder, not in the log."""
    try:
        do()
    except OSError:
        pass
    except Exception:
        with suppress(OSError):
            make_folder(run.monitor)
            with open_file(run.monitor / f"trouble-{node_name()}.txt", "wb") as file:
                file.write(traceback.format_exc().encode(errors="backslashreplace"))
        return False
    return True


def ended(parent: int) -> bool:
    """Wait for a moment; true at once when the input ends, and within `CHECK_EVERY_S` after the parent does."""
    if select.select([0], [], [], CHECK_EVERY_S)[0] and not os.read(0, 4096):
        return True
    return os.getppid() != parent


def lower() -> None:
    """Yield the CPUs to the ranks, and end quietly at SIGTERM; other signals of a job are for the ranks."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # TensorBoard's writer imports numpy
    with suppress(OSError):
        os.nice(NICE)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


if __name__ == "__main__":
    with suppress(Exception):  # what is wrong with the run folder, the ranks say
        main(sys.argv[1:])
