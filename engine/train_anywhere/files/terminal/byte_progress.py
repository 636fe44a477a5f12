"""Progress, in bytes, of operations that take longer than a few seconds, on standard error."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_INTERVAL_S = 10.0
"""Seconds between two lines if standard error is not a terminal."""

Progress = Callable[[int], None]
"""A function to call with the number of bytes of each file."""


@contextmanager
def show_progress(title: str) -> Iterator[Progress]:
    """Print how many bytes are done: on a terminal in one line that changes, else in a new line every few seconds."""
    start = printed = time.monotonic()
    bytes_done, terminal = 0, sys.stderr.isatty()
    begin, end = ("\r", "") if terminal else ("", "\n")

    def advance(size: int) -> None:
        nonlocal bytes_done, printed
        bytes_done += size
        if time.monotonic() - printed > (0.2 if terminal else LINE_INTERVAL_S):
            printed = time.monotonic()
            line = f"{begin}{title}: {format_bytes(bytes_done)} in {printed - start:.0f} s"
            print(line, end=end, file=sys.stderr, flush=True)

    print(f"{title} ...", end=end, file=sys.stderr, flush=True)
    yield advance
    took = time.monotonic() - start
    print(f"{begin}{title}: done, {format_bytes(bytes_done)} in {took:.0f} s.", file=sys.stderr, flush=True)


def format_bytes(size: int) -> str:
    """Format a number of bytes, such as 3.1 GB."""
    for power, unit in ((9, "GB"), (6, "MB")):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size / 1000:.1f} kB"
