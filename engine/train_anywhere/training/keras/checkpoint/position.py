"""Where a run stands: position, newest metrics, early stopping; what a checkpoint holds besides variables."""

import math
from dataclasses import dataclass, field

from train_anywhere.config.schema import EarlyStopping
from train_anywhere.training.early_stopping import Patience
from train_anywhere.training.plan import Plan


@dataclass
class Position:
    """Changes while training.

    Attributes:
        epoch, batch: the next batch to train is number `batch` of epoch `epoch`, both from 0.
        step: optimizer steps done.
        metrics: the newest value of each metric.
        pending: all batches of the epoch are done, but not yet what belongs to its end, such as the validation.
        patience: what early stopping has seen.
        ended: a callback has set `stop_training`: the run is over.
        preempted: a signal asked to stop.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    pending: bool = False
    patience: Patience = field(default_factory=Patience)
    ended: bool = False
    preempted: bool = False

    def numbers(self) -> list[float]:
        """All that ranks must agree on; `from_numbers` reverses it."""
        best = math.nan if self.patience.best is None else self.patience.best
        return [self.epoch, self.batch, self.step, self.pending, best, self.patience.waited, self.ended]

    @classmethod
    def from_numbers(cls, numbers: list[float], metrics: dict[str, float]) -> "Position":
        """The position that `numbers` was called on, with other metrics."""
        epoch, batch, step, pending, best, waited, ended = numbers
        patience = Patience(None if math.isnan(best) else best, int(waited))
        return cls(int(epoch), int(batch), int(step), metrics, bool(pending), patience, bool(ended))

    def advance(self, plan: Plan, steps: int = 1) -> None:
        """So many optimizer steps of an epoch are done; `max_steps` may end the last epoch early."""
        self.step += steps
        self.batch += steps * plan.accumulate
        self.pending = self.batch >= plan.train_batches or self.step >= plan.total_steps

    def close_epoch(self, plan: Plan) -> None:
        """What belongs to the end of the epoch is done."""
        self.pending = False
        if self.batch >= plan.train_batches:
            self.epoch, self.batch = self.epoch + 1, 0

    def over(self, plan: Plan, rule: EarlyStopping) -> bool:
        """Whether training is complete, by its length or by early stopping."""
        done = self.ended or self.patience.over(rule) or self.step >= plan.total_steps
        return done and not self.pending
