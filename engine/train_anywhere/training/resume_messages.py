"""Messages and refusals when a run resumes, for both frameworks."""

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.checks.strategy_table import FrameworkName
from train_anywhere.config.choices import OtherSchedule
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError
from train_anywhere.training.plan import Plan
from train_anywhere.training.schedules import learning_rate, warmup_steps

RISE = 1.5
"""The resumed learning rate is reported if it is more than this factor above the saved one."""


def refuse_other_framework(saved: SavedCheckpoint, framework: FrameworkName) -> None:
    """Raise CheckpointError for a checkpoint that `framework` can't read."""
    if saved.framework != framework:
        raise CheckpointError(
            f"{saved.path} was written with framework={saved.framework}; resume with that, or start a new run."
        )


def resume_message(saved: SavedCheckpoint, config: Config, plan: Plan, world_size: int) -> str:
    """Return the first line of a resumed run; it warns if a longer schedule raises the learning rate again.

    `world_size` is the number of devices that share the global batch.
    """
    line = f"resuming at step {saved.step}" + (f" of {plan.total_steps}" if plan.steps_known else "")
    before = saved.metrics.get("lr")
    if isinstance(config.schedule, OtherSchedule) or not config.task.metrics or before is None:
        return line
    now = learning_rate(config.optimizer, config.schedule, plan, saved.step - 1, world_size)
    if saved.step <= warmup_steps(config.schedule, plan.steps_per_epoch) or now <= RISE * before:
        return line
    return f"{line}; schedule={config.schedule.name} now ends there: the learning rate rises from {before:.3g} to {now:.3g}"


def device_count_message(before: int, now: int) -> str:
    """Return the line for a resume on `now` devices of a checkpoint with the random states of `before` devices."""
    return (
        f"resuming a {before}-device checkpoint on {now}: batches, weights and optimizer stay as they were, "
        "but dropout draws new random numbers."
    )
