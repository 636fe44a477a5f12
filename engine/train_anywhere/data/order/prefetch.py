"""Read several small batches in a row, before they are needed.

Between two training steps the CPU caches hold other data, so reading a small batch there takes several times as long.
"""

import time
from collections.abc import Iterator
from typing import TypeVar

MAX_BATCHES = 32
"""The most batches to read together: more would hardly reduce the time for each."""

MAX_GROUP_S = 0.002
"""Seconds of reading after which no further batch is read, so that a batch does not wait for slow ones after it."""

T = TypeVar("T")


def read_ahead(batches: Iterator[T]) -> Iterator[T]:
    """Yield the batches, of which several are read at once; an exception is raised in place of its batch."""
    more = True
    while more:
        more, group, exception = False, list[T](), None
        start = time.monotonic()
        try:
            for batch in batches:
                group.append(batch)
                if more := len(group) == MAX_BATCHES or time.monotonic() - start > MAX_GROUP_S:
                    break
        except Exception as error:
            exception = error
        yield from group
        if exception:
            raise exception
