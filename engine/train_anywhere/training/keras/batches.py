"""The batches of training and evaluation, distributed by the strategy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.config.limits import MAX_COUNT
from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import Arrays, DataSet, Splits
from train_anywhere.data.known import too_large
from train_anywhere.data.order.assignment import BatchOrder, block_order
from train_anywhere.data.tf.pipeline import read_batches, row_spec, to_data_set
from train_anywhere.data.tf.streams import Stream, share_rows
from train_anywhere.errors import ConfigError, DataError
from train_anywhere.training.keras.checkpoint import Position
from train_anywhere.training.keras.strategies.base import Strategy
from train_anywhere.training.plan import Plan, count_parts, refuse_parts


def stack_batches(batches: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Return stacks of `count` batches, or single ones. Raises ConfigError if their shapes differ."""
    if count == 1:
        return batches
    if any(None in spec.shape for spec in tf.nest.flatten(batches.element_spec)):
        raise ConfigError(
            f"trainer.accumulate_grad_batches={count} needs batches of one shape, and the rows of this data have different shapes; pad "
            "them to one shape, or use trainer.accumulate_grad_batches=1 with a larger data.batch_size."
        )
    return batches.batch(count, drop_remainder=True)


def steps_argument(x: Any, steps: int) -> int | None:
    """Return `steps_per_epoch` or `validation_steps` for data: None if it has as many batches, so that each pass is a new one."""
    length = x.num_batches if isinstance(x, keras.utils.PyDataset) else int(x.cardinality())
    return None if length == steps else steps


@dataclass(frozen=True)
class Rows:
    """Some rows of a data set."""

    rows: DataSet
    start: int
    stop: int

    @property
    def dataset(self) -> Any:
        """The user's own data set."""
        return getattr(self.rows, "dataset", self.rows)

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Arrays:
        """Return the rows, see `DataSet.read`."""
        return self.rows.read(indices + self.start, epoch, train)


class Loader:
    """The batches of a model, as `keras.Model.fit` would get them; `notes` are lines for the user about limitations of the data.

    Raises ConfigError, DataError: a split can't be read, or can't be divided between replicas.
    """

    def __init__(self, config: Config, strategy: Strategy, splits: Splits) -> None:
        self.config, self.strategy, self.own_split = config, strategy, config.data.own_split
        self.notes: list[str] = []
        self.splits: dict[str, DataSet | Stream | None] = {
            name: self._open_split(name, getattr(splits, name)) for name in ("train", "val", "test")
        }
        if part := config.trainer.extra.get("validation_split"):
            self.splits |= self._hold_out(part)

    def count_batches(self, split: str) -> int:
        """Return the number of batches of a split over all ranks. Raises ConfigError without one."""
        data = self.splits[split]
        if data is None:
            return 0
        if isinstance(data, Stream):
            counts = [int(n) for [n] in self.strategy.gather([self._count_stream_batches(data)])]
            if split != "train" and len({*counts}) > 1:
                raise DataError(
                    f"the {split} data has {min(counts)} batches on one rank and {max(counts)} on another; use "
                    f"trainer.limit_{split}_batches={min(counts)}."
                )
            return max(counts)
        size, length = self.config.data.batch_size, len(data)
        if split != "train":
            # too few rows are refused only if they are read
            return self._order(split, 0, self.strategy.replicas).batches(max(length, self.strategy.replicas))
        if sentence := too_large(length, size, self.strategy.replicas):
            raise DataError(sentence)
        if length % size:
            self.notes.append(f"each epoch leaves out {length % size} of {length} rows: they fill no batch.")
        return length // size

    def spec(self, split: str) -> Any:
        """Return the types and shapes of a replica's batch."""
        data = self.splits[split]
        if isinstance(data, Stream):
            return self._own_rows(data.batches(1), split).element_spec
        assert data
        return row_spec(data, self._order(split, 0, self.strategy.replicas).batch_per_rank, split == "train")

    def _order(self, split: str, rank: int, replicas: int) -> BatchOrder:
        """Return the rows of a replica."""
        train, trainer = split == "train", self.config.trainer
        shuffle = train and trainer.overfit_batches is None and trainer.extra.get("shuffle", True)
        blocks, parts = block_order(self.splits[split]), count_parts(self.config) if train else 1
        at = self.config.data.batch_size, self.config.seed, rank, replicas
        return BatchOrder(*at, shuffle, blocks, parts, drop_last=train)

    def is_read_again(self, split: str) -> bool:
        """Return whether `fit` reads the user's own object, whose batches depend on those that were read before."""
        return isinstance(self.splits[split], Stream) and self.strategy.replicas == 1

    def for_fit(self, plan: Plan, position: Position) -> dict[str, Any]:
        """Return the training data as arguments of `fit`.

        The batches of `is_read_again` start at the first epoch, and others at the position.
        """
        data, extra = self.splits["train"], self.config.trainer.extra
        weights = {int(number): weight for number, weight in extra.get("class_weight", {}).items()}
        if weights and tf.distribute.has_strategy():
            raise ConfigError(
                "trainer.extra.class_weight works on one device and with strategy=horovod; return the weight of its class as the third "
                "value of each row."
            )
        options: dict[str, Any] = {"class_weight": weights or None, "shuffle": False}
        if isinstance(data, Stream) and self.is_read_again("train"):
            x = data.for_fit(plan.train_batches, repeats=True, stacked=plan.accumulate > 1)
            x = stack_batches(x, plan.accumulate)
            options["shuffle"] = isinstance(x, keras.utils.PyDataset) and extra.get("shuffle", True)
            return options | {"x": x, "steps_per_epoch": steps_argument(x, plan.steps_per_epoch)}
        return options | {"x": self.training(plan, position), "steps_per_epoch": plan.steps_per_epoch}

    def training(self, plan: Plan, position: Position) -> tf.data.Dataset:
        """Return endless batches from a position on, in stacks if gradients are accumulated."""
        data = self.splits["train"]
        if isinstance(data, Stream):
            batches = data.batches(plan.train_batches, endless=True).skip(position.step * plan.accumulate)
            own = self._own_rows(batches.prefetch(2), "train")
            return self.strategy.distribute(stack_batches(own, plan.accumulate))
        start = position.epoch * plan.train_batches + position.batch
        return self._read("train", plan.accumulate, start=start, per_epoch=plan.train_batches)

    def _read(self, split: str, stacked: int = 1, **limits: int) -> tf.data.Dataset:
        """Return batches of rows that are read by index. The `limits` are those of `read_batches`."""
        data: Any = self.splits[split]

        def read_rank(rank: int, replicas: int) -> tf.data.Dataset:
            order = self._order(split, rank, replicas)
            return stack_batches(read_batches(data, order, self.config.data.workers, **limits), stacked)

        return self.strategy.dataset(read_rank)

    def evaluation(self, split: str, limit: int) -> dict[str, Any]:
        """Return the first `limit` batches and their number as arguments of `evaluate` and `predict`."""
        data = self.splits[split]
        if not isinstance(data, Stream):
            return {"x": self._read(split, stop=limit), "steps": limit}
        if not self.is_read_again(split):
            x = self.strategy.distribute(self._own_rows(data.batches(limit), split))
            return {"x": x, "steps": limit}
        x = data.for_fit(limit)
        return {"x": x, "steps": steps_argument(x, limit)}

    def _open_split(self, name: str, data: Any) -> DataSet | Stream | None:
        if data is None:
            return None
        dataset = to_data_set(data, self.config.seed)
        if dataset is not None:
            return dataset if len(dataset) or name == "train" else None
        if isinstance(data, Mapping | str) or not hasattr(data, "__iter__"):
            raise ConfigError(
                f"the {name} data is a {type(data).__name__}; return rows that are read by index (__len__ and __getitem__), a "
                "tf.data.Dataset or a keras.utils.PyDataset from data._target_."
            )
        stream, ranks = Stream(data, name), self.strategy.replicas
        if ranks > 1:
            self._check_split(stream)
        if name == "train":
            refuse_parts(self.config, type(data).__name__)
            shared = "" if ranks == 1 or self.own_split else ", the rows of each shared by the ranks"
            self.notes.append(
                f"the {name} data is a {type(data).__name__}: its batches are used in the order and size it yields them{shared}, and a "
                "resumed run skips those already read."
            )
        return stream

    def _hold_out(self, part: float) -> dict[str, DataSet | Stream | None]:
        """Return training data without its last rows, which are validated. Raises ConfigError for data with own batches or validation."""
        rows, key = self.splits["train"], f"trainer.extra.validation_split={part}"
        if self.splits["val"] is not None:
            raise ConfigError(
                f"{key}, but data={self.config.data.name} has validation rows; leave one of both out."
            )
        if rows is None or isinstance(rows, Stream):
            raise ConfigError(
                f"{key} divides arrays and rows that are read by index, and this data has its own batches; return (train, val)."
            )
        first = math.floor(len(rows) * (1 - part))  # as Keras' `fit`
        return {"train": Rows(rows, 0, first), "val": Rows(rows, first, len(rows))}

    def _check_split(self, data: Stream) -> None:
        """Raise ConfigError or DataError if the ranks can't share a stream, or read the same rows with data.split=own."""
        kind, ranks = type(data.split).__name__, self.strategy.replicas
        if self.own_split and self.strategy.processes < ranks:
            raise ConfigError(
                f"data.split=own needs a process for each of the {ranks} devices; use another strategy."
            )
        if self.own_split and data.name != "train":
            return
        if not (self.own_split or isinstance(data.split, tf.data.Dataset | keras.utils.PyDataset)):
            raise ConfigError(
                f"the {data.name} data is a {kind}, which {ranks} ranks or devices can't share: each would read all of it; return a "
                "tf.data.Dataset, a PyDataset or rows that are read by index. Does it give each rank rows of its own? Use data.split=own."
            )
        first = [number for [number] in self.strategy.gather([data.hash_first()])]
        if self.own_split and len({*first}) < len(first):
            raise DataError(
                "data.split=own: ranks read the same first batch; give each rank rows of its own, by the variables RANK and WORLD_SIZE."
            )
        if not self.own_split and len({*first}) > 1:
            raise ConfigError(
                f"the {data.name} data, a {kind}, starts with other rows on each rank. Does it give each rank rows of its own? Use "
                "data.split=own. Otherwise let its order depend only on the seed."
            )

    def _own_rows(self, batches: tf.data.Dataset, split: str) -> tf.data.Dataset:
        """Return the rows of this process's replicas in each batch of a stream."""
        strategy, first = self.strategy, self.strategy.rank * self.strategy.local
        if strategy.replicas == 1 or self.own_split:
            return batches
        own = range(first, first + strategy.local)
        return share_rows(batches, own, strategy.replicas, split == "train")

    def _count_stream_batches(self, data: Stream) -> int:
        trainer = self.config.trainer
        limit = getattr(trainer, f"limit_{data.name}_batches")
        if data.length is not None:
            return data.length
        if trainer.fast_dev_run:
            return 1
        if isinstance(limit, int):
            return limit
        endless = (
            isinstance(data.split, tf.data.Dataset)
            and data.split.cardinality() == tf.data.INFINITE_CARDINALITY
        )
        if data.name != "train" and not endless:  # like Keras, evaluate all of it
            return sum(1 for _ in data.batches(MAX_COUNT))
        raise ConfigError(
            f"the {data.name} data, a {type(data.split).__name__}, does not say how many batches it has; use "
            f"trainer.limit_{data.name}_batches=N."
        )
