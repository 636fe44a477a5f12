"""Standard output and error that can't end a run: a closed pipe, a full disk or a closed terminal is reported, not raised.

Call `protect_output()` once, at the start of a process that trains or submits. It also covers the output of frameworks and rich.
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


class _NeverFailingFile(io.FileIO):
    """A descriptor whose writes never fail: what can't be written is dropped, and reported once on the other stream."""

    reported = False
    mark = b""
    _at_line_start = True

    def write(self, data: "bytes | memoryview") -> int:  # type: ignore[override]
        """Write what the descriptor accepts, but return the whole length: the layers above must neither fail nor buffer the rest."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        if self.mark and size:
            rest = memoryview(self._add_marks(bytes(rest)))
        while rest:
            try:
                rest = rest[os.write(self.fileno(), rest) :]
            except OSError as error:
                self._report(error)
                break
        return size

    def _add_marks(self, data: bytes) -> bytes:
        """Insert the mark before each line that starts in `data`."""
        marked = data[:-1].replace(b"\n", b"\n" + self.mark) + data[-1:]
        marked = self.mark + marked if self._at_line_start else marked
        self._at_line_start = data.endswith(b"\n")
        return marked

    def _report(self, error: OSError) -> None:
        if self.reported:
            return
        self.reported = True
        line = f"{NAMES[self.fileno()]} can't be written ({error.strerror}); continuing without it.\n"
        with suppress(OSError):  # both streams may be closed
            os.write(OTHER[self.fileno()], line.encode())


def protect_output() -> None:
    """Make writes to `sys.stdout` and `sys.stderr` never fail; call it before anything that must not be left half done."""
    fill_closed()
    if (
        sys.stdout is sys.__stdout__
    ):  # not yet replaced, by this function or by something that captures output
        sys.stdout = _stream(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _stream(2, sys.stderr)


def mark_lines(mark: str) -> None:
    """Prefix each line of this process with `mark`, for a log that several processes share; lines printed by C code get none."""
    for stream in (sys.stdout, sys.stderr):
        raw = getattr(getattr(stream, "buffer", None), "raw", None)
        if isinstance(raw, _NeverFailingFile):
            raw.mark = mark.encode()


def outlive_terminal() -> None:
    """Ignore SIGHUP, which a closed terminal sends; ranks started later inherit this."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def escape_characters() -> None:
    """Escape characters that the encoding of standard output lacks, as standard error does anyway."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def output_problem() -> str | None:
    """Return why standard output can't be written, and stop using it; None if it works."""
    try:
        if sys.stdout is not None:
            print(flush=True)  # fails too if an earlier write failed
    except OSError as error:
        sys.stdout = None  # type: ignore[assignment]
        return f"{NAMES[1]} can't be written ({error.strerror})."
    return None


def fill_closed() -> None:
    """Open /dev/null for each closed descriptor 0, 1 and 2: else the next open file gets its number, and the messages of libraries."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is `number`


def _stream(number: int, before: TextIO | None) -> TextIO:
    """Return a text stream for a descriptor; it escapes characters that its encoding lacks."""
    if before is not None:
        with suppress(OSError, ValueError):
            before.flush()
    encoding = before.encoding if before is not None else "utf-8"
    raw = _NeverFailingFile(number, "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),  # type: ignore[type-var]
        encoding,
        errors="backslashreplace",
        line_buffering=True,
    )
