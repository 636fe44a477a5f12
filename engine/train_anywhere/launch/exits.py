"""Exits of a run's processes: with the right code, in time, and recorded."""

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

from train_anywhere.errors import INTERRUPTED, listed

GRACE_S = 30.0
"""Time for threads, child processes and exit handlers of user code after the end of the run."""

PATIENCE_S = 120.0
"""Time for a rank's last checkpoint after the process that started it has died."""

PARENT = "TRAIN_PARENT"
"""Environment variable with the pid of the process that started a rank and watches it."""

_exit_now = os._exit


def leave(command: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its code, at most `GRACE_S` later."""
    code = 1
    try:
        code = command()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except KeyboardInterrupt:  # a second one, while the first was handled
        code = INTERRUPTED
    finally:
        if code == INTERRUPTED:  # a further one would end in a traceback of the interpreter's exit
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        with suppress(RuntimeError):  # no more threads
            threading.Thread(target=_exit_after_grace, args=(code,), name="exit", daemon=True).start()
    sys.exit(code)


def _exit_after_grace(code: int) -> None:
    time.sleep(GRACE_S)
    while not (left := list_leftovers()):
        time.sleep(1)
    print(f"{listed(left, 3)} did not end within {GRACE_S:.0f} s; exiting without waiting.", file=sys.stderr)
    end_now(code)


def end_now(code: int) -> NoReturn:
    """Exit without threads, exit handlers and objects, which may wait for other ranks."""
    for child in multiprocessing.active_children():
        child.kill()
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    _exit_now(code)


def list_leftovers() -> list[str]:
    """Describe what keeps this process from exiting: threads, children or exit handlers."""
    frames, main = sys._current_frames(), threading.main_thread()
    threads = [t for t in threading.enumerate() if t is not main and t.ident in frames and not t.daemon]
    found = [f"thread '{t.name}' ({_lines(frames[t.ident])[-1]})" for t in threads if t.ident is not None]
    found += [f"process '{p.name}' (pid {p.pid})" for p in multiprocessing.active_children() if not p.daemon]
    own = [] if found or main.ident not in frames else _lines(frames[main.ident], only_user_code=True)
    return found or ([f"an exit handler ({own[-1]})"] if own else [])


def _lines(frame: FrameType, only_user_code: bool = False) -> list[str]:
    """Return the lines of a stack outside installed packages, innermost last. All if none."""
    stack, packages = traceback.extract_stack(frame), (sysconfig.get_path("stdlib"), "<frozen")
    users = [
        one for one in stack if not one.filename.startswith(packages) and "-packages" not in one.filename
    ]
    shown = users if users or only_user_code else stack
    return [f"{one.filename}, line {one.lineno}, in {one.name}" for one in shown]


@contextmanager
def catch_os_exit(report: Callable[[str], None]) -> Iterator[None]:
    """Make `os._exit` of user code a failure, whose reason `report` gets."""
    process = os.getpid()

    def exit_reported(code: int) -> NoReturn:
        if os.getpid() == process:  # not in a forked child
            traceback.print_stack(sys._getframe(1))
            reason = f"user code called os._exit({code})"
            print(f"error: {reason}.", file=sys.stderr, flush=True)
            report(reason)
        _exit_now(code or int(os.getpid() == process))

    os._exit = exit_reported  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = _exit_now


def rank_environment() -> dict[str, str]:
    """Return the environment for a rank that stops when this process dies."""
    return {**os.environ, PARENT: str(os.getpid())}


def follow_parent() -> int | None:
    """Stop this rank with a checkpoint when the process that started it dies, and kill it after `PATIENCE_S`.

    Return that process; None if a launcher started the rank.
    """
    parent = int(os.environ.pop(PARENT, 0))  # what this rank starts has another parent
    if parent:
        threading.Thread(target=_wait_for_parent, args=(parent,), name="parent", daemon=True).start()
    return parent or None


def _wait_for_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    print(f"process {parent}, which started this rank, has died.", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_S)
    os.kill(os.getpid(), signal.SIGKILL)
