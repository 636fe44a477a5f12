"""The batches of training and evaluation, shared out by the strategy."""

from typing import Any

import tensorflow as tf

from src.config.schema import Config
from src.data.base import DataSet, Splits
from src.data.order import BatchOrder, batches_per_epoch
from src.data.tf_pipeline import tf_dataset
from src.data.tf_samples import as_dataset
from src.errors import ConfigError, DataError
from src.training.keras.position import Position
from src.training.keras.strategies.base import Strategy
from src.training.plan import Plan


class TaskLoader:
    """The batches of a native task: all rows, in one order on any number of ranks; padding has weight 0.

    Args:
        task: what has `prepare`, perhaps.

    Raises:
        ConfigError: a part of the data can't be read by index.
    """

    def __init__(self, config: Config, strategy: Strategy, splits: Splits, task: Any) -> None:
        self.config, self.strategy = config, strategy
        self.prepare = getattr(task, "prepare", None)
        self.parts = {name: self._part(name, getattr(splits, name)) for name in ("train", "val", "test")}

    def batches(self, part: str) -> int:
        """Of a part, over all ranks; an incomplete one counts."""
        dataset = self.parts[part]
        return batches_per_epoch(len(dataset), self.config.data.batch_size) if dataset else 0

    def training(self, plan: Plan, position: Position) -> tf.data.Dataset:
        """Endless batches from a position on; stacks of them if gradients are accumulated."""
        dataset = self.parts["train"]
        assert dataset

        def of_rank(rank: int, world_size: int) -> tf.data.Dataset:
            batches = tf_dataset(
                dataset,
                self._order(rank, world_size, train=True),
                prepare=self.prepare,
                workers=self.config.data.workers,
                start_epoch=position.epoch,
                start_batch=position.batch,
                limit_batches=plan.train_batches,
            )
            return batches if plan.accumulate == 1 else stacks(batches, plan.accumulate)

        return self.strategy.dataset(of_rank)

    def evaluation(self, part: str, limit: int) -> tf.data.Dataset:
        """The first `limit` batches in their own order."""
        dataset = self.parts[part]
        assert dataset

        def of_rank(rank: int, world_size: int) -> tf.data.Dataset:
            return tf_dataset(
                dataset,
                self._order(rank, world_size, train=False),
                prepare=self.prepare,
                workers=self.config.data.workers,
                epochs=1,
                limit_batches=limit,
            )

        return self.strategy.dataset(of_rank)

    def _order(self, rank: int, world_size: int, train: bool) -> BatchOrder:
        return BatchOrder(self.config.data.batch_size, self.config.seed, rank, world_size, train)

    def _part(self, name: str, part: Any) -> DataSet | None:
        dataset = as_dataset(part)
        if dataset is not None and len(dataset):
            return dataset
        if part is None or dataset is not None:
            if name == "train":
                raise DataError("the training split has no rows.")
            return None
        raise ConfigError(
            f"the {name} data is a {type(part).__name__}, and task={self.config.task.name} needs rows that are read by index: return an "
            "object with __len__ and __getitem__, or __len__ and read, from data._target_."
        )


def stacks(batches: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Stacks of `count` batches. Raises ConfigError: they are not of one shape."""
    if any(None in spec.shape for spec in tf.nest.flatten(batches.element_spec)):
        raise ConfigError(
            f"trainer.accumulate_grad_batches={count} needs batches of one shape, and the rows of this data have different ones; pad "
            "them to one shape, or use trainer.accumulate_grad_batches=1 with a larger data.batch_size."
        )
    return batches.batch(count, drop_remainder=True)
