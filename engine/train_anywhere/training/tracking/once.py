"""Every metric once: what an earlier attempt has sent is not sent again.

A resumed run repeats the steps after its checkpoint, bit for bit, and would log them a second time. The test of a run has the step of
its last epoch, so it is pairs of name and step that are compared.
"""

from collections.abc import Iterable, Mapping

Pair = tuple[str, int]
"""Name of a metric, and optimizer steps done when it was logged."""


class Once:
    """Knows which metrics were sent.

    Args:
        seen: those of earlier attempts.
    """

    def __init__(self, seen: Iterable[Pair] = ()) -> None:
        self.seen = frozenset(seen)

    def fresh(self, metrics: Mapping[str, float], step: int) -> dict[str, float]:
        """The metrics that no earlier attempt has sent for this step."""
        return {name: value for name, value in metrics.items() if (name, step) not in self.seen}
