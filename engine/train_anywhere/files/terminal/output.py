"""Standard output and error that can't end a run: failures are reported, not raised.

Call `protect_output()` once, at the start of a process that trains or submits. It also covers the output of frameworks and rich.
Tracebacks of errors in user code have no frames of the engine; operations that take long show their progress in bytes.
"""

import io
import os
import re
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from train_anywhere.files import ENGINE, ROOT
from train_anywhere.files.terminal.fit import fit_message

NAMES = {1: "standard output", 2: "standard error"}

ERASED, CONTROL = rb"\x1b\[2?K|\r", rb"\x1b\[[0-9;?]*[A-Za-z]"
"""What erases the start of a line, and any other control sequence of a terminal."""


class _NeverFailingFile(io.FileIO):
    """A descriptor whose writes never fail: what can't be written is reported once."""

    reported, mark = False, b""
    log: int | None = None
    """Descriptor of a file that gets the lines too, without colors and bars."""
    _at_line_start, _unfinished = True, b""

    def write(self, data: "bytes | memoryview") -> int:  # type: ignore[override]
        """Write what the descriptor accepts, and return the whole length in any case."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        if self.mark and size:
            text = bytes(rest)
            marked = text[:-1].replace(b"\n", b"\n" + self.mark) + text[-1:]
            rest = memoryview(self.mark + marked if self._at_line_start else marked)
            self._at_line_start = text.endswith(b"\n")
        if self.log is not None:
            self._write_log(bytes(rest))
        while rest:
            try:
                rest = rest[os.write(self.fileno(), rest) :]
            except OSError as error:
                line = f"{NAMES[self.fileno()]} can't be written ({error.strerror}); continuing without it.\n"
                with suppress(OSError):  # both streams may be closed
                    if not self.reported:
                        self.reported = True
                        os.write(3 - self.fileno(), line.encode())
                break
        return size

    def _write_log(self, data: bytes) -> None:
        """Append complete lines to the log, as a terminal shows them in the end."""
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        shown = [re.sub(CONTROL, b"", re.split(ERASED, line.rstrip(b"\r"))[-1]) for line in lines]
        with suppress(OSError):  # a full disk does not end the run
            os.write(self.log or 0, b"".join(line + b"\n" for line in shown))


class _FittedText(io.TextIOWrapper):
    """A stream that fits messages to the terminal."""

    def write(self, text: str) -> int:
        """Write a string; return its length."""
        super().write(fit_message(text, self))
        return len(text)


def protect_output() -> None:
    """Make writes to `sys.stdout` and `sys.stderr` never fail."""
    # for closed descriptors 0, 1 and 2, which the next file would get
    while (null := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(null)
    for number, name in ((1, "stdout"), (2, "stderr")):
        before: TextIO | None = getattr(sys, name)
        if before is not getattr(sys, f"__{name}__"):
            continue  # replaced, by this function or by something that captures output
        with suppress(OSError, ValueError, AttributeError):
            before.flush()  # type: ignore[union-attr]
        raw = _NeverFailingFile(number, "wb", closefd=False)
        encoding = before.encoding if before is not None else "utf-8"
        buffer = io.BufferedWriter(raw)  # type: ignore[type-var]
        setattr(sys, name, _FittedText(buffer, encoding, errors="backslashreplace", line_buffering=True))


def mark_lines(mark: str) -> None:
    """Prefix each line of this process with `mark`, except lines printed by C code."""
    for raw in _protected_files():
        raw.mark = mark.encode()


def keep_log(path: Path) -> None:
    """Append the lines of this process to a file, too. If it can't be opened, there is no log."""
    with suppress(OSError):
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        if os.path.sameopenfile(log, 1):  # what has started this process writes its output there
            os.close(log)
            return
        for raw in _protected_files():
            raw.log = log


def end_log_line() -> None:
    """Append an incomplete last line to the log."""
    for raw in _protected_files():
        if raw.log is not None and raw._unfinished:
            raw._write_log(b"\n")


def _protected_files() -> list[_NeverFailingFile]:
    found = (getattr(getattr(stream, "buffer", None), "raw", None) for stream in (sys.stdout, sys.stderr))
    return [raw for raw in found if isinstance(raw, _NeverFailingFile)]


def outlive_terminal() -> None:
    """Ignore SIGHUP, which a closed terminal sends, here and in ranks started later."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def escape_characters() -> None:
    """Escape characters that the encoding of standard output lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def output_problem() -> str | None:
    """Return why standard output can't be written, and stop using it. None if it works."""
    try:
        if sys.stdout is not None:
            print(flush=True)  # fails too if an earlier write failed
    except OSError as error:
        sys.stdout = None  # type: ignore[assignment]
        return f"{NAMES[1]} can't be written ({error.strerror})."
    return None


Progress = Callable[[int], None]
"""A function to call with the number of bytes of each file."""


@contextmanager
def show_progress(title: str, total: int = 0) -> Iterator[Progress]:
    """Print how many bytes are done: on a terminal in one line, else every few seconds."""
    start = printed = time.monotonic()
    bytes_done, terminal = 0, sys.stderr.isatty()
    begin, end = ("\r", "") if terminal else ("", "\n")
    of_total = f" of {format_bytes(total)}" if total else ""

    def advance(size: int) -> None:
        nonlocal bytes_done, printed
        bytes_done += size
        if time.monotonic() - printed > (0.2 if terminal else 10):
            printed = time.monotonic()
            line = f"{begin}{title}: {format_bytes(bytes_done)}{of_total} in {printed - start:.0f} s"
            print(line, end=end, file=sys.stderr, flush=True)

    print(f"{title} ...", end=end, file=sys.stderr, flush=True)
    try:
        yield advance
    except BaseException:
        print(end="\n" if terminal else "", file=sys.stderr, flush=True)
        raise
    took = time.monotonic() - start
    print(f"{begin}{title}: done, {format_bytes(bytes_done)} in {took:.0f} s.", file=sys.stderr, flush=True)


def format_bytes(size: int) -> str:
    """Format a number of bytes, such as 3.1 GB."""
    power, unit = (9, "GB") if size >= 10**9 else (6, "MB") if size >= 10**6 else (3, "kB")
    return f"{size / 10**power:.1f} {unit}"


def is_user_code(path: str) -> bool:
    """Return whether a file is neither the engine's, a library's, nor a script of src."""
    libraries, file = (str(ENGINE / "train_anywhere"), sysconfig.get_path("stdlib"), "<"), Path(path)
    packages = {"site-packages", "dist-packages"} & {*file.parts}
    command = file.parent == ROOT / "src" and (ENGINE / "train_anywhere/commands" / file.name).is_file()
    return not command and not path.startswith(libraries) and not packages


def user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost line of the traceback that is user code, if any."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((frame for frame in frames if is_user_code(frame.filename)), None)


def format_short(error: BaseException) -> tuple[str, int]:
    """Return a traceback from the first line of user code on, and the number of frames left out.

    The causes of the error are shortened in the same way; one without user code is kept as it is.
    """
    whole, left_out = traceback.TracebackException.from_exception(error), 0
    chain = [whole]
    for one in chain:  # which grows
        chain += filter(None, (one.__cause__, one.__context__, *(one.exceptions or ())))
        if users := [at for at, frame in enumerate(one.stack) if is_user_code(frame.filename)]:
            kept = [*one.stack[users[0] : users[-1] + 1], *one.stack[users[-1] + 1 :][-1:]]
            left_out += len(one.stack) - len(kept)
            one.stack[:] = kept
    return "".join(whole.format()), left_out
