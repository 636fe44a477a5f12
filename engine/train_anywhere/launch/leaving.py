"""How a process of a run exits: with its own code, in time, recorded, and not later than the process that started it."""

import multiprocessing
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

GRACE_S = 30.0
"""Time that threads, child processes and exit handlers of user code get after the end of the run."""

PATIENCE_S = 120.0
"""Time that a rank gets for its last checkpoint when the process that started it has died."""

PARENT = "TRAIN_PARENT"
"""Variable with the process that started a rank and watches it."""

_exit_now = os._exit


def leave(command: Callable[[], int]) -> NoReturn:
    """Exit with a command's code, at the latest `GRACE_S` after it, even if user code keeps the process."""
    code = 1
    try:
        code = command()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        with suppress(RuntimeError):  # no more threads
            threading.Thread(target=_exit_in_time, args=(code,), name="exit", daemon=True).start()
    sys.exit(code)


def _exit_in_time(code: int) -> None:
    time.sleep(GRACE_S)
    while not (left := left_over()):
        time.sleep(1)
    more = f" and {len(left) - 3} more" if len(left) > 3 else ""
    print(
        f"{', '.join(left[:3])}{more} did not end within {GRACE_S:.0f} s; exiting without waiting.",
        file=sys.stderr,
    )
    for child in multiprocessing.active_children():
        child.kill()
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    _exit_now(code)


def left_over() -> list[str]:
    """Describe what keeps this process from exiting: threads, child processes, or an exit handler of user code."""
    frames, main = sys._current_frames(), threading.main_thread()
    threads = [t for t in threading.enumerate() if t is not main and t.ident in frames and not t.daemon]
    found = [f"thread '{t.name}' ({_place(frames[t.ident])})" for t in threads if t.ident is not None]
    found += [f"process '{p.name}' (pid {p.pid})" for p in multiprocessing.active_children() if not p.daemon]
    own = [] if found or main.ident not in frames else _own_lines(frames[main.ident])
    return found or ([f"an exit handler ({own[-1]})"] if own else [])


def _place(frame: FrameType) -> str:
    """Where a thread stands: the innermost line of user code if there is one."""
    lines = _own_lines(frame) or [_line(one) for one in traceback.extract_stack(frame)]
    return lines[-1]


def _own_lines(frame: FrameType) -> list[str]:
    """The lines of a stack outside of installed packages, the innermost last."""
    packages = (sysconfig.get_path("stdlib"), "<frozen")
    stack = [one for one in traceback.extract_stack(frame) if not one.filename.startswith(packages)]
    return [_line(one) for one in stack if "-packages" not in one.filename]


def _line(one: traceback.FrameSummary) -> str:
    return f"{one.filename}, line {one.lineno}, in {one.name}"


@contextmanager
def reported_exits(report: Callable[[], None]) -> Iterator[None]:
    """Make `os._exit` of user code in this process a failure: it would leave exit code 0 and a run that seems to continue."""
    process = os.getpid()

    def exit_reported(code: int) -> NoReturn:
        if os.getpid() == process:  # not a child that it has forked
            traceback.print_stack(sys._getframe(1))
            print(f"error: user code called os._exit({code}).", file=sys.stderr, flush=True)
            report()
        _exit_now(code or int(os.getpid() == process))

    os._exit = exit_reported  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = _exit_now


def rank_environment() -> dict[str, str]:
    """Return the environment of a rank that stops when this process dies."""
    return {**os.environ, PARENT: str(os.getpid())}


def follow_parent() -> None:
    """Stop this rank when the process that started it dies: with a checkpoint, or killed after `PATIENCE_S`."""
    if parent := os.environ.pop(PARENT, ""):  # what this rank starts has another parent
        threading.Thread(target=_follow, args=(int(parent),), name="parent", daemon=True).start()


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    print(f"process {parent}, which started this rank, has died.", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_S)
    os.kill(os.getpid(), signal.SIGKILL)
