"""How many batches and optimizer steps a run has: the arithmetic of `trainer.*`, once, for both frameworks."""

from dataclasses import dataclass

from src.config.batch import uneven_batch
from src.config.schema import Config, LimitBatches
from src.errors import ConfigError


@dataclass(frozen=True)
class Plan:
    """The size of a run.

    Attributes:
        rows: rows of one batch on one rank.
        train_batches: training batches of an epoch, a multiple of `accumulate`; an incomplete last window is left out.
        accumulate: batches per optimizer step.
        steps_per_epoch: optimizer steps of an epoch.
        max_epochs: epochs to train at most, the last one possibly cut short by `total_steps`.
        total_steps: optimizer steps of the whole run.
        val_batches: validation batches; 0 turns validation off.
        test_batches: test batches; 0 turns the test off.
    """

    rows: int
    train_batches: int
    accumulate: int
    steps_per_epoch: int
    max_epochs: int
    total_steps: int
    val_batches: int
    test_batches: int


def make_plan(config: Config, train_length: int, val_length: int, test_length: int, world_size: int) -> Plan:
    """Resolve batch size, limits, `max_steps` and `fast_dev_run`.

    Args:
        train_length, val_length, test_length: samples of each split.
        world_size: number of ranks that share the global batch.

    Raises:
        ConfigError: where batch size, ranks, accumulation and data don't fit together.
    """
    t, batch = config.trainer, config.data.batch_size
    problems = []
    if uneven := uneven_batch(batch, world_size, "ranks"):
        problems.append(uneven)
    train = limited(-(-train_length // batch), t.limit_train_batches, t.fast_dev_run)
    accumulate = 1 if t.fast_dev_run else t.accumulate_grad_batches
    if train < accumulate:
        problems.append(
            f"an epoch has {train} batches, fewer than trainer.accumulate_grad_batches={accumulate}: no step would be "
            "made; accumulate less, use a smaller data.batch_size or a larger trainer.limit_train_batches."
        )
    if problems:
        raise ConfigError(*problems)
    steps = train // accumulate
    epochs = 1 if t.fast_dev_run else t.max_epochs
    total = min(epochs * steps, t.max_steps or epochs * steps)
    return Plan(
        rows=batch // world_size,
        train_batches=steps * accumulate,
        accumulate=accumulate,
        steps_per_epoch=steps,
        max_epochs=-(-total // steps),
        total_steps=total,
        val_batches=limited(-(-val_length // batch), t.limit_val_batches, t.fast_dev_run),
        test_batches=limited(-(-test_length // batch), t.limit_test_batches, t.fast_dev_run),
    )


def limited(batches: int, limit: LimitBatches, fast_dev_run: bool) -> int:
    """`batches`, limited to a number (int) or a fraction (float); a fraction above 0 leaves at least one batch."""
    if fast_dev_run:
        return min(1, batches)
    if isinstance(limit, int):
        return min(limit, batches)
    return min(batches, max(1, int(batches * limit))) if limit else 0
