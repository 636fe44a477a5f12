"""Batches without padding and weights, for the steps of a user's LightningModule.

In training the incomplete last batch of an epoch is left out. In evaluation the ranks share it, and every rank has at least one row of
each batch: if the last batch has fewer rows than there are ranks, its rows go into the batch before.
"""

from dataclasses import dataclass

import numpy as np

from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.errors import DataError


@dataclass(frozen=True)
class UnpaddedOrder:
    """The rows of one rank, batch by batch.

    Attributes:
        order: has batch size, ranks and seed, and whether each epoch has a new order.
        drop_last: whether an incomplete last batch is left out.
    """

    order: BatchOrder
    drop_last: bool

    def batches(self, length: int) -> int:
        """Return the number of batches in one pass over `length` rows.

        Raises:
            DataError: an evaluation has fewer rows than there are ranks.
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
        """Return this rank's rows of a batch: indices int64 [n]; in a full batch all ranks have the same number of rows."""
        start = batch * self.order.batch_size
        last = not self.drop_last and batch + 1 == self.batches(length)
        stop = length if last else start + self.order.batch_size
        if stop - start == self.order.batch_size:
            return self.order.full_batch(length, epoch, batch)
        # the same part as of np.array_split, without computing the others' rows
        each, more = divmod(stop - start, self.order.world_size)
        first = start + self.order.rank * each + min(self.order.rank, more)
        return self.order.samples(length, epoch, first, first + each + (self.order.rank < more))
