"""Where a run stands: position, newest metrics, early stopping; what a checkpoint holds besides variables."""

import math
from dataclasses import dataclass, field

from src.config.schema import EarlyStopping
from src.training.plan import Plan


@dataclass
class State:
    """Changes while training.

    Attributes:
        epoch, batch: position; the next batch to train is number `batch` of epoch `epoch`, both from 0.
        step: optimizer steps done.
        metrics: the newest value of each metric.
        pending: the epoch's batches are done, but not yet what belongs to its end, such as the validation.
        best: of the metric that early stopping watches, None before the first validation.
        bad: validations since `best`.
        preempted: a signal asked to stop.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    pending: bool = False
    best: float | None = None
    bad: int = 0
    preempted: bool = False

    def numbers(self) -> list[float]:
        """All that ranks must agree on; `from_numbers` reverses it."""
        best = math.nan if self.best is None else self.best
        return [self.epoch, self.batch, self.step, self.pending, best, self.bad]

    @classmethod
    def from_numbers(cls, numbers: list[float], metrics: dict[str, float]) -> "State":
        """The state that `numbers` was called on, with other metrics."""
        epoch, batch, step, pending, best, bad = numbers
        known = None if math.isnan(best) else best
        return cls(int(epoch), int(batch), int(step), metrics, bool(pending), known, int(bad))

    def advance(self, plan: Plan) -> None:
        """One optimizer step is done; `max_steps` may end the last epoch early."""
        self.step += 1
        self.batch += plan.accumulate
        self.pending = self.batch >= plan.train_batches or self.step >= plan.total_steps

    def close_epoch(self, plan: Plan) -> None:
        """What belongs to the end of the epoch is done."""
        self.pending = False
        if self.batch >= plan.train_batches:
            self.epoch, self.batch = self.epoch + 1, 0

    def judge(self, rule: EarlyStopping) -> None:
        """Compare the newest value of the watched metric with the best one."""
        value = self.metrics[rule.monitor]
        gain = 0.0 if self.best is None else (value - self.best) * (1 if rule.mode == "max" else -1)
        if math.isfinite(value) and (self.best is None or gain > rule.min_delta):
            self.best, self.bad = value, 0
        else:
            self.bad += 1

    def over(self, plan: Plan, rule: EarlyStopping) -> bool:
        """Whether training is complete, by its length or by early stopping."""
        early = rule.patience is not None and self.bad >= max(1, rule.patience)
        return not self.pending and (early or self.step >= plan.total_steps)
