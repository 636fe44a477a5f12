"""The batches of training and evaluation, shared out by the strategy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from train_anywhere.config.limits import MOST
from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import DataSet, Splits
from train_anywhere.data.order.assignment import BatchOrder, batches_per_epoch
from train_anywhere.data.order.fits import too_large
from train_anywhere.data.order.keep_batch import keep_batch
from train_anywhere.data.tf.pipeline import row_spec, tf_dataset
from train_anywhere.data.tf.samples import as_dataset
from train_anywhere.data.tf.streams import Stream, is_stream
from train_anywhere.data.tf.unpadded import evaluation_batches, training_batches, whole_batches
from train_anywhere.errors import ConfigError, DataError
from train_anywhere.training.keras.checkpoint.position import Position
from train_anywhere.training.keras.strategies.base import Strategy
from train_anywhere.training.plan import Plan


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
                replace(self._order(rank, world_size, train=True), accumulate=plan.accumulate),
                prepare=self.prepare,
                workers=self.config.data.workers,
                start_epoch=position.epoch,
                start_batch=position.batch,
                limit_batches=plan.train_batches,
            )
            return batches if plan.accumulate == 1 else stacks(batches, plan.accumulate)

        return self.strategy.dataset(of_rank)

    def keep(self, epoch: int, batch: int, rank: int, file: Path) -> list[int]:
        """Write what a device has in a batch of the training to a file; returns the numbers of its rows. Raises DataError, OSError."""
        dataset = self.parts["train"]
        assert dataset
        rows, _ = self._order(rank, self.strategy.replicas, train=True).rows(len(dataset), epoch, batch)
        read = dataset.read(rows, epoch, True)
        return keep_batch(file, rows, self.prepare(read) if self.prepare else read)

    def evaluation(self, part: str, limit: int) -> tuple[tf.data.Dataset, None]:
        """The first `limit` batches in their own order; all have one size."""
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

        return self.strategy.dataset(of_rank), None

    def _order(self, rank: int, world_size: int, train: bool) -> BatchOrder:
        return BatchOrder(self.config.data.batch_size, self.config.seed, rank, world_size, train)

    def _part(self, name: str, part: Any) -> DataSet | None:
        dataset = as_dataset(part, self.config.seed)
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


class DropInLoader:
    """Batches as `keras.Model.fit` would get them, for a model that brings its own steps.

    Attributes:
        notes: what such data gives up, for people.

    Raises:
        ConfigError, DataError: a part of the data can't be read, or not by so many replicas.
    """

    def __init__(self, config: Config, strategy: Strategy, splits: Splits) -> None:
        self.config, self.strategy = config, strategy
        self.notes: list[str] = []
        self.parts: dict[str, DataSet | Stream | None] = {
            name: self._part(name, getattr(splits, name)) for name in ("train", "val", "test")
        }

    def batches(self, part: str) -> int:
        """Of a part, over all ranks. Raises ConfigError: it does not say, and the configuration neither."""
        data = self.parts[part]
        if data is None:
            return 0
        if isinstance(data, Stream):
            return self._of_stream(data)
        size, length = self.config.data.batch_size, len(data)
        if part != "train":
            return batches_per_epoch(length, size)
        if length % size and length > size:
            self.notes.append(
                f"{length % size} of {length} rows are left out of each training epoch: they are no whole batch of {size}."
            )
        if sentence := too_large(length, size, self.strategy.replicas):
            raise DataError(sentence)
        return whole_batches(length, size)

    def spec(self, part: str) -> Any:
        """Types and shapes of a replica's batch."""
        data = self.parts[part]
        if isinstance(data, Stream):
            return data.evaluation(1).element_spec
        assert data
        rows = self.config.data.batch_size // self.strategy.replicas
        return row_spec(data, rows, None, part == "train")

    def training(self, plan: Plan, position: Position) -> tf.data.Dataset:
        """Endless batches from a position on."""
        data = self.parts["train"]
        assert data
        if isinstance(data, Stream):
            return data.training(plan.train_batches, position.step)

        def of_rank(rank: int, world_size: int) -> tf.data.Dataset:
            return training_batches(
                data,
                BatchOrder(self.config.data.batch_size, self.config.seed, rank, world_size, train=True),
                workers=self.config.data.workers,
                start_epoch=position.epoch,
                start_batch=position.batch,
                per_epoch=plan.train_batches,
            )

        return self.strategy.dataset(of_rank)

    def evaluation(self, part: str, limit: int) -> tuple[tf.data.Dataset, tf.data.Dataset | None]:
        """The first `limit` batches in their own order; apart, the last one if it has fewer rows.

        Metrics of Keras weigh a batch by the number of its rows where its shape is known, so whole batches have one.
        """
        data = self.parts[part]
        assert data
        if isinstance(data, Stream):
            return data.evaluation(limit), None
        whole = min(limit, len(data) // self.config.data.batch_size)

        def between(start: int, stop: int) -> tf.data.Dataset:
            def of_rank(rank: int, world_size: int) -> tf.data.Dataset:
                order = BatchOrder(self.config.data.batch_size, self.config.seed, rank, world_size)
                return evaluation_batches(
                    data, order, workers=self.config.data.workers, start=start, stop=stop
                )

            return self.strategy.dataset(of_rank)

        return between(0, whole), between(whole, limit) if whole < limit else None

    def _part(self, name: str, part: Any) -> DataSet | Stream | None:
        if part is None:
            return None
        if not is_stream(part) and (dataset := as_dataset(part, self.config.seed)) is not None:
            return dataset if len(dataset) or name == "train" else None
        if not is_stream(part):
            raise ConfigError(
                f"the {name} data is a {type(part).__name__}; return rows that are read by index (__len__ and __getitem__), a "
                "tf.data.Dataset or a keras.utils.PyDataset from data._target_."
            )
        if self.strategy.replicas > 1:
            raise ConfigError(
                f"the {name} data is a {type(part).__name__}, which {self.strategy.replicas} ranks or devices can't share: each would read "
                "all of it; return rows that are read by index, or use trainer.devices=1."
            )
        if name == "train":
            self.notes.append(
                f"the {name} data is a {type(part).__name__}: its batches are taken as they come, and a resumed run skips those that were "
                "read; data.batch_size has no effect."
            )
        return Stream(part, name)

    def _of_stream(self, data: Stream) -> int:
        trainer = self.config.trainer
        limit = getattr(trainer, f"limit_{data.name}_batches")
        if data.length is not None:
            return data.length
        if trainer.fast_dev_run:
            return 1
        if isinstance(limit, int):
            return limit
        endless = (
            isinstance(data.part, tf.data.Dataset) and data.part.cardinality() == tf.data.INFINITE_CARDINALITY
        )
        if data.name != "train" and not endless:  # as Keras does, it is read to its end
            return sum(1 for _ in data.evaluation(MOST))
        raise ConfigError(
            f"the {data.name} data, a {type(data.part).__name__}, does not say how many batches it has; use "
            f"trainer.limit_{data.name}_batches=N."
        )
