"""What a framework's loop hands back."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Outcome:
    """The end of a run, or of a part of one.

    Attributes:
        state: completed, or preempted when a signal asked to stop before the end.
        epoch: epochs completed.
        step: optimizer steps done.
        metrics: flat, by the names of `schema.METRICS` and `test/loss`, `test/acc`.
        checkpoint: folder of the newest checkpoint, if one was written.
    """

    state: Literal["completed", "preempted"]
    epoch: int
    step: int
    metrics: dict[str, float]
    checkpoint: str | None
