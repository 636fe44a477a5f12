"""Description of a checkpoint: position, metrics and folder."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class CheckpointInfo:
    """Position and metrics of the training when it is saved.

    Attributes:
        step: number of optimizer steps done.
        epoch, batch: the next batch to train is number `batch` of epoch `epoch`, both counted from 0.
        metrics: the newest values by name.
        value: value of `checkpoint.monitor`; None if it was not measured at this step.
        framework: the framework that wrote it.
        seconds: time of training so far, over all attempts of the run.
    """

    step: int
    epoch: int
    batch: int
    metrics: dict[str, float]
    value: float | None
    framework: str
    seconds: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True)
class SavedCheckpoint(CheckpointInfo):
    """A complete checkpoint.

    Attributes:
        path: its folder.
    """

    path: Path


INFO_FIELDS = tuple(CheckpointInfo.__dataclass_fields__)
"""Names of the fields in a manifest."""
