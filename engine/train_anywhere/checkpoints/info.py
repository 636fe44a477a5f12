"""What is known of a checkpoint beside its files."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CheckpointInfo:
    """Where the training stands when it is saved.

    Attributes:
        step: optimizer steps done.
        epoch, batch: position; the next batch to train is number `batch` of epoch `epoch`, both from 0.
        metrics: flat, the newest values when it was written.
        value: of `checkpoint.monitor`, None if it was not measured at this step.
        framework: the framework that wrote it.
    """

    step: int
    epoch: int
    batch: int
    metrics: dict[str, float]
    value: float | None
    framework: str


@dataclass(frozen=True)
class SavedCheckpoint(CheckpointInfo):
    """A complete checkpoint.

    Attributes:
        path: its folder.
    """

    path: Path


INFO_FIELDS = tuple(CheckpointInfo.__dataclass_fields__)
"""The names of the fields, as a manifest has them."""
