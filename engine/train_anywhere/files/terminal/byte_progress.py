"""Progress of what takes longer than a few seconds, in bytes, on standard error."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SAID = 10.0
"""Seconds between two lines where standard error is no terminal."""

Progress = Callable[[int], None]
"""Called with the bytes of each file."""


@contextmanager
def telling(beginning: str) -> Iterator[Progress]:
    """Within, says how many bytes are done: in one line that changes on a terminal, else in a plain line every few seconds."""
    begun = said = time.monotonic()
    bytes_done, terminal = 0, sys.stderr.isatty()

    def advance(size: int) -> None:
        nonlocal bytes_done, said
        bytes_done += size
        if time.monotonic() - said > (0.2 if terminal else SAID):
            said = time.monotonic()
            text = f"{beginning}: {in_words(bytes_done)} in {said - begun:.0f} s"
            print(
                f"\r{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True
            )

    print(f"{beginning} ...", end="" if terminal else "\n", file=sys.stderr, flush=True)
    yield advance
    start = "\r" if terminal else ""
    took = time.monotonic() - begun
    print(f"{start}{beginning}: done, {in_words(bytes_done)} in {took:.0f} s.", file=sys.stderr, flush=True)


def in_words(size: int) -> str:
    """A number of bytes: 3.1 GB."""
    for power, unit in ((9, "GB"), (6, "MB")):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size / 1000:.1f} kB"
