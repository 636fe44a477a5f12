"""Standard output and error that can't end a run: a reader that went away, a full disk or a terminal that hung up.

`protect()` once, at the start of a process that trains or submits. What Lightning, Keras and rich print is covered too.
"""

import errno
import io
import os
import signal
import sys
from contextlib import suppress
from typing import TextIO

OTHER = {1: 2, 2: 1}
"""The stream that says what happened to the other one."""

NAMES = {1: "standard output", 2: "standard error"}


class _Forgiving(io.FileIO):
    """A descriptor that takes everything: what can't be written is dropped, and the first time the other stream says so."""

    told = False

    def write(self, data: "bytes | memoryview") -> int:  # type: ignore[override]
        """Always all of it: the layers above must neither fail nor keep it for later."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            try:
                rest = rest[os.write(self.fileno(), rest) :]
            except OSError as error:
                self._tell(error)
                break
        return size

    def _tell(self, error: OSError) -> None:
        if self.told:
            return
        self.told = True
        line = f"{NAMES[self.fileno()]} can't be written ({error.strerror}); continuing without it.\n"
        with suppress(OSError):  # both may be gone
            os.write(OTHER[self.fileno()], line.encode())


def protect() -> None:
    """Make `sys.stdout` and `sys.stderr` unbreakable, from the moment on where ending would leave something half done."""
    fill_closed()
    if sys.stdout is sys.__stdout__:  # not yet replaced, by this or by what captures it
        sys.stdout = _stream(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _stream(2, sys.stderr)


def outlive_terminal() -> None:
    """A terminal that hangs up is no reason to end; ranks that are started later inherit that."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def escape_characters() -> None:
    """What the encoding of standard output lacks is escaped, as standard error does anyway."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def trouble() -> str | None:
    """Why standard output can't be written, where it can't; it is given up then."""
    try:
        if sys.stdout is not None:
            print(flush=True)  # an error that names no file came from a write: the next one fails too
    except OSError as error:
        sys.stdout = None  # type: ignore[assignment]
        return f"{NAMES[1]} can't be written ({error.strerror})."
    return None


def fill_closed() -> None:
    """Open /dev/null where descriptor 0, 1 or 2 is closed: the next file would get its number, and libraries' messages."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, this one


def _stream(number: int, before: TextIO | None) -> TextIO:
    """The text stream of a descriptor; a character that its encoding lacks is escaped."""
    if before is not None:
        with suppress(OSError, ValueError):
            before.flush()
    encoding = before.encoding if before is not None else "utf-8"
    raw = _Forgiving(number, "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),  # type: ignore[type-var]
        encoding,
        errors="backslashreplace",
        line_buffering=True,
    )
