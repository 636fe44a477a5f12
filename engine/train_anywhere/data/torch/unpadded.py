"""Batches without padding and weights, for steps that know neither: a LightningModule's own.

In training the incomplete last batch of an epoch is left out. In evaluation it is shared by the ranks, and every rank has at least one row
of each batch: what is left and does not reach all ranks goes into the batch before.
"""

from dataclasses import dataclass

import numpy as np

from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.order.shuffle import shuffled
from train_anywhere.errors import DataError


@dataclass(frozen=True)
class BareOrder:
    """The rows of one rank, batch by batch.

    Attributes:
        order: batch size, ranks and seed.
        drop_last: an incomplete last batch is left out.
        shuffle: a new order in each epoch.
    """

    order: BatchOrder
    drop_last: bool
    shuffle: bool

    def batches(self, length: int) -> int:
        """Batches of one pass over `length` rows.

        Raises:
            DataError: there are too few rows for the ranks to evaluate.
        """
        whole, left = divmod(length, self.order.batch_size)
        if self.drop_last:
            return whole
        if length < self.order.world_size:
            raise DataError(
                f"an evaluation of {length} rows can't be shared by {self.order.world_size} ranks; use {max(1, length)} or fewer, or turn "
                "it off with trainer.limit_val_batches=0 trainer.limit_test_batches=0."
            )
        return whole + (left >= self.order.world_size or not whole)

    def rows(self, length: int, epoch: int, batch: int) -> np.ndarray:
        """This rank's rows of a batch: indices int64 [n], in full batches as many on each rank."""
        start = batch * self.order.batch_size
        last = not self.drop_last and batch + 1 == self.batches(length)
        stop = length if last else start + self.order.batch_size
        # Each rank's part as np.array_split would cut it, without the others' rows.
        each, more = divmod(stop - start, self.order.world_size)
        first = start + self.order.rank * each + min(self.order.rank, more)
        after = first + each + (self.order.rank < more)
        if self.shuffle:
            return shuffled(length, self.order.seed, epoch, first, after)
        return np.arange(first, after)
