"""Send each metric only once: what an earlier attempt has sent is not sent again.

A resumed run repeats the steps after its checkpoint, bit for bit, and would log them a second time. Names and steps are compared together,
since the test metrics of a run have the step of its last epoch.
"""

from collections.abc import Iterable, Mapping

MetricPoint = tuple[str, int]
"""The name of a metric, and the number of optimizer steps done when it was logged."""


class SentMetrics:
    """The metrics that earlier attempts have sent."""

    def __init__(self, seen: Iterable[MetricPoint] = ()) -> None:
        self.seen = frozenset(seen)

    def unsent(self, metrics: Mapping[str, float], step: int) -> dict[str, float]:
        """Return the metrics that no earlier attempt has sent for this step."""
        return {name: value for name, value in metrics.items() if (name, step) not in self.seen}
