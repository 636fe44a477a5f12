"""Small batches, several of which are read one right after the other.

Between two steps of a training the processor's caches hold other things, so to read a small batch there takes several times as long.
"""

import time
from collections.abc import Iterator
from typing import TypeVar

MOST = 32
"""Batches that are read together: by then what comes with the first one costs next to nothing for each."""

LONGEST_S = 0.002
"""When reading has taken so long, no other batch is read with them: none waits for slow ones after it."""

T = TypeVar("T")


def ahead(batches: Iterator[T]) -> Iterator[T]:
    """The same, of which several are read before the first of them is given; an exception comes where its batch would have come."""
    more = True
    while more:
        more, group, failed = False, list[T](), None
        began = time.monotonic()
        try:
            for batch in batches:
                group.append(batch)
                if more := len(group) == MOST or time.monotonic() - began > LONGEST_S:
                    break
        except Exception as error:
            failed = error
        yield from group
        if failed:
            raise failed
