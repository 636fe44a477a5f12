"""What is refused and what is said when a run resumes, in both frameworks."""

from src.checkpoints.info import SavedCheckpoint
from src.config.strategies import FrameworkName
from src.errors import CheckpointError


def refuse_other_framework(saved: SavedCheckpoint, framework: FrameworkName) -> None:
    """Raise CheckpointError for a checkpoint that `framework` can't read."""
    if saved.framework != framework:
        raise CheckpointError(
            f"{saved.path} was written with framework={saved.framework}; resume with that, or start a new run."
        )


def resuming_at(step: int, total_steps: int) -> str:
    """The line that a resumed run begins with."""
    return f"resuming at step {step} of {total_steps}"


def other_devices(before: int, now: int) -> str:
    """Message for a resume on another number of devices than the checkpoint has random states of."""
    return (
        f"resuming a {before}-device checkpoint on {now}: batches, weights and optimizer stay as they were, "
        "but dropout draws new random numbers."
    )
