"""The monitor process of one node, which runs services of features next to the ranks.

python -m train_anywhere.features.node RUN [PARENT]

It never disturbs the ranks, and exits at the end of its input.
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

from train_anywhere.distributed.network.addresses import node_name
from train_anywhere.features import Features
from train_anywhere.features.feature import NodeService
from train_anywhere.files.atomic import write_with_folder
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import load_frozen

CHECK_EVERY_S, CLOSING_S = 1.0, 0.1
"""Seconds between two checks whether the parent is alive (the end of the input is noticed at once), and that the exit waits for services in
the middle of a poll: launch/processes.py kills this process soon after."""

NICE = 10
"""On a busy CPU this gives a tenth of a rank's share; with 19, a hundredth, this process would hardly run if all CPUs are busy."""


def main(arguments: Sequence[str]) -> int:
    """Run the services of this node until the end of its job: RUN [PARENT]. Return 0."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # a feature may import numpy
    with suppress(OSError):
        os.nice(NICE)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parent = int(arguments[1]) if len(arguments) > 1 else os.getppid()
    run = RunDir(Path(arguments[0]))

    def is_over() -> bool:
        """Wait up to `CHECK_EVERY_S`, and return whether the input or the parent has ended."""
        if select.select([0], [], [], CHECK_EVERY_S)[0] and not os.read(0, 4096):
            return True
        return os.getppid() != parent

    run_services(make_services(run, Features.of(load_frozen(run))), is_over, run)
    return 0


def make_services(run: RunDir, features: Features) -> list[NodeService]:
    """Return the services of this node, without those that can't be created."""
    services: list[NodeService] = []
    for make in [make for one in features.all for make in one.node_services(run, node_name())]:
        attempt(lambda make=make: services.append(make()), run)  # type: ignore[misc]
    return services


def run_services(services: list[NodeService], done: Callable[[], bool], run: RunDir) -> None:
    """Poll each service in its own thread until `done()`: a GPU may not answer."""
    stop = threading.Event()

    def repeat(service: NodeService) -> None:
        while not stop.wait(service.every_seconds) and attempt(lambda: service.poll(time.time()), run):
            pass

    threads = [threading.Thread(target=repeat, args=(service,), daemon=True) for service in services]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads) and not done():
            pass
    finally:
        stop.set()
        end = time.monotonic() + CLOSING_S
        for service, thread in zip(services, threads, strict=True):
            thread.join(max(0.0, end - time.monotonic()))
            attempt(service.close, run)


def attempt(do: Callable[[], None], run: RunDir) -> bool:
    """Call a function. Return False for an error but OSError, and write its traceback."""
    try:
        do()
    except OSError:
        pass
    except Exception:
        with suppress(OSError):
            text = traceback.format_exc().encode(errors="backslashreplace")
            write_with_folder(run.monitor / f"trouble-{node_name()}.txt", text)
        return False
    return True


if __name__ == "__main__":
    with suppress(Exception):  # the ranks report problems of the run folder
        main(sys.argv[1:])
