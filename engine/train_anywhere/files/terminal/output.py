"""Standard output and error that can't end a run, with a closed pipe, a full disk or a terminal that hung up.

Call `protect()` once, at the start of a process that trains or submits. It covers what frameworks and rich print too.
"""

import errno
import io
import os
import signal
import sys
from contextlib import suppress
from typing import TextIO

OTHER = {1: 2, 2: 1}
"""The stream on which a failure of the other one is reported."""

NAMES = {1: "standard output", 2: "standard error"}


class _Forgiving(io.FileIO):
    """A descriptor whose writes never fail: what can't be written is dropped, and reported once on the other stream."""

    reported = False
    mark = b""
    _begins = True

    def write(self, data: "bytes | memoryview") -> int:  # type: ignore[override]
        """Always reports everything as written: the layers above must neither fail nor buffer it."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        if self.mark and size:
            rest = memoryview(self._marked(bytes(rest)))
        while rest:
            try:
                rest = rest[os.write(self.fileno(), rest) :]
            except OSError as error:
                self._report(error)
                break
        return size

    def _marked(self, data: bytes) -> bytes:
        """The mark before each line that begins in it."""
        whole = data[:-1].replace(b"\n", b"\n" + self.mark) + data[-1:]
        marked = self.mark + whole if self._begins else whole
        self._begins = data.endswith(b"\n")
        return marked

    def _report(self, error: OSError) -> None:
        if self.reported:
            return
        self.reported = True
        line = f"{NAMES[self.fileno()]} can't be written ({error.strerror}); continuing without it.\n"
        with suppress(OSError):  # both may be gone
            os.write(OTHER[self.fileno()], line.encode())


def protect() -> None:
    """Make `sys.stdout` and `sys.stderr` unbreakable; called before anything that must not be left half done."""
    fill_closed()
    if sys.stdout is sys.__stdout__:  # not yet replaced, here or by something that captures output
        sys.stdout = _stream(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _stream(2, sys.stderr)


def mark_lines(mark: str) -> None:
    """Begin each line of this process with `mark`: several write into one log. Lines of libraries that are not Python's have none."""
    for stream in (sys.stdout, sys.stderr):
        raw = getattr(getattr(stream, "buffer", None), "raw", None)
        if isinstance(raw, _Forgiving):
            raw.mark = mark.encode()


def outlive_terminal() -> None:
    """Ignore the hang-up of the terminal; ranks started later inherit that."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def escape_characters() -> None:
    """Escape characters that the encoding of standard output lacks, as standard error does anyway."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def trouble() -> str | None:
    """Why standard output can't be written, or None; if it can't, it is dropped."""
    try:
        if sys.stdout is not None:
            print(flush=True)  # if an earlier write failed, this one fails too
    except OSError as error:
        sys.stdout = None  # type: ignore[assignment]
        return f"{NAMES[1]} can't be written ({error.strerror})."
    return None


def fill_closed() -> None:
    """Open /dev/null for each closed descriptor 0, 1 and 2: the next file opened would get its number, and libraries' messages."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, this one


def _stream(number: int, before: TextIO | None) -> TextIO:
    """The text stream of a descriptor; characters that its encoding lacks are escaped."""
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
