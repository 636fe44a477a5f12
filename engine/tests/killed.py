"""Kill a command at its n-th file operation or program start, in a child with an audit hook."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

CHANGES = (
    "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree", "subprocess.Popen",
)  # fmt: skip
"""Audit events of operations that change something, besides opening a file for writing."""

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def run_killed(
    call: Callable[[], object], folder: Path, at: int = 0, without: str = "", log: Path | None = None
) -> tuple[bool, int]:
    """Run `call` in a child that dies just before its operation number `at` below `folder`.

    Operations whose paths all contain `without` do not count.

    Returns:
        Whether it was killed, and the number of its operations if it was not.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _run(call, str(folder), at, without, writer, log)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        count = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status == -signal.SIGKILL, int(count or 0)


def _run(
    call: Callable[[], object], folder: str, at: int, without: str, writer: int, log: Path | None
) -> None:
    count, code, armed = 0, 99, True

    def counts(event: str, arguments: tuple[object, ...]) -> bool:
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITES):
            return False
        if event == "subprocess.Popen":
            return True
        if event != "open" and event not in CHANGES:
            return False
        paths = [os.fspath(a) for a in arguments[:2] if isinstance(a, str | os.PathLike)]
        opened = {"os.remove": 1, "os.rmdir": 1, "os.rename": 2}.get(event)  # the number of dir_fd
        fd = arguments[opened] if opened else -1
        above = os.readlink(f"/proc/self/fd/{fd}") if isinstance(fd, int) and fd >= 0 else ""
        named = [os.path.join(above, p) for p in paths if isinstance(p, str)]
        inside = any(not p.startswith("/") or p.startswith(folder) for p in named)
        return inside and not (without and all(without in p for p in named))

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if armed and counts(event, arguments):
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        output = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)
        sys.addaudithook(watch)
        result = call()
        code = result if isinstance(result, int) else 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
    armed = False
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(writer, str(count).encode())
    os._exit(code & 0xFF)
