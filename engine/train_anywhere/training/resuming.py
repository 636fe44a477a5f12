"""What is refused and what is said when a run resumes, in both frameworks."""

from train_anywhere.checkpoints.info import SavedCheckpoint
from train_anywhere.config.checks.strategy_table import FrameworkName
from train_anywhere.config.choices import OtherSchedule
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError
from train_anywhere.training.plan import Plan
from train_anywhere.training.schedules import learning_rate, warmup_steps

RISE = 1.5
"""Factor by which the learning rate of a longer schedule is above the saved one before a line says so."""


def refuse_other_framework(saved: SavedCheckpoint, framework: FrameworkName) -> None:
    """Raise CheckpointError for a checkpoint that `framework` can't read."""
    if saved.framework != framework:
        raise CheckpointError(
            f"{saved.path} was written with framework={saved.framework}; resume with that, or start a new run."
        )


def resuming_at(saved: SavedCheckpoint, config: Config, plan: Plan, world_size: int) -> str:
    """Return the line that a resumed run begins with; it says so if a longer schedule raises the learning rate again.

    Args:
        world_size: devices that share the global batch.
    """
    line = f"resuming at step {saved.step} of {plan.total_steps}"
    before = saved.metrics.get("lr")
    if isinstance(config.schedule, OtherSchedule) or not config.task.metrics or before is None:
        return line
    now = learning_rate(config, plan, saved.step - 1, world_size)
    if saved.step <= warmup_steps(config.schedule, plan.steps_per_epoch) or now <= RISE * before:
        return line
    return f"{line}; schedule={config.schedule.name} now ends there: the learning rate rises from {before:.3g} to {now:.3g}"


def other_devices(before: int, now: int) -> str:
    """Message for a resume on another number of devices than the checkpoint has random states of."""
    return (
        f"resuming a {before}-device checkpoint on {now}: batches, weights and optimizer stay as they were, "
        "but dropout draws new random numbers."
    )
