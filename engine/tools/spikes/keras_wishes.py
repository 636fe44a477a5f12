"""Call whoever wants to act at a step, with one comparison per call of the train function."""

import math
from collections.abc import Callable, Iterable, Mapping


class Wishes:
    """Calls observers at the steps at which they want to be called.

    An observer gets the current step and returns the next step at which it wants to be called, or None. It is called once for each of its
    wishes, at the end of the call of the train function that contains the step.
    """

    def __init__(self, observers: Mapping[Callable[[int], int | None], int]) -> None:
        self.next = dict(observers)
        self.due = min(self.next.values(), default=math.inf)

    def reach(self, step: int) -> None:
        """Call the observers whose step has come."""
        if step < self.due:
            return
        for observer, wanted in list(self.next.items()):
            while wanted is not None and wanted <= step:
                wanted = observer(step)
            self.next[observer] = math.inf if wanted is None else wanted
        self.due = min(self.next.values())


def steps_per_execution(intervals: Iterable[int], batches: int, longest: int) -> int:
    """Return the largest divisor of all intervals and of the epoch's batches, up to `longest`."""
    common = math.gcd(batches, *intervals)
    return max(n for n in range(1, min(common, longest) + 1) if common % n == 0)
