"""What happens between the steps of `fit`: metrics, validation, early stopping, checkpoints, stopping."""

import time
from collections.abc import Callable

import keras
import tensorflow as tf

from src.checkpoints.interval import Interval
from src.config.schema import Config
from src.training.keras.checkpoint import Saver
from src.training.keras.module import Classifier
from src.training.keras.position import State
from src.training.keras.tensorboard import Report
from src.training.nan_watch import NanWatch, judged
from src.training.plan import Plan
from src.training.schedules import factor, scaled_lr
from src.training.stop import Stop


class Loop(keras.callbacks.Callback):
    """The order of events around the steps; Keras hands it no logs, numbers come from the model's tally.

    Reading the tally waits for the device and, with several ranks, is an exchange; so it is read every
    `log_every_n_steps` steps and at the end of an epoch, and with it travel the wish of any rank to stop, and
    that of rank 0 to save.

    Args:
        saver: on rank 0, None on the others.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        state: State,
        model: Classifier,
        report: Report,
        saver: Saver | None,
        stop: Stop,
        validation: Callable[[], tf.data.Dataset],
    ) -> None:
        super().__init__()
        self.config, self.plan, self.state, self.classifier = config, plan, state, model
        self.report, self.saver, self.stop, self.validation = report, saver, stop, validation
        self.interval = Interval(config.checkpoint, model.strategy.replicas)
        self.due = False
        self.nan = NanWatch(config.trainer.detect_nan, model.strategy.rank == 0)

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """After each optimizer step."""
        state, before = self.state, self.state.batch
        if self.saver:
            self.saver.publisher.check()
        state.advance(self.plan)
        fresh = None
        if state.pending or state.step % self.config.trainer.log_every_n_steps == 0:
            fresh = self.measured("train") | {"lr": self.learning_rate()}
            state.metrics |= fresh
            if not state.pending:  # at the end of the epoch, in one row with the validation
                self.report.write(state.step, state.epoch, fresh)
                self.nan.look(state.step, fresh)
        for number in range(before, state.batch):
            self.report.progress.batch(state.epoch, number, fresh if number + 1 == state.batch else None)
        self.look_at_flag()
        due = self.due or self.interval.by_step(state.step)
        if due and not (state.pending or state.preempted):
            self.save()
        self.classifier.stop_training = state.preempted

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """After the last step of an epoch, or the one in which `fit` was stopped."""
        if self.state.pending and not self.state.preempted:
            self.end_epoch()
        over = self.state.over(self.plan, self.config.trainer.early_stopping)
        self.classifier.stop_training = over or self.state.preempted

    def end_epoch(self) -> None:
        """Validation, early stopping, checkpoint; a run that was stopped before this resumes with it."""
        state, trainer, epoch = self.state, self.config.trainer, self.state.epoch
        last = state.step >= self.plan.total_steps
        names = ["train/loss", "train/acc", "lr"]
        if self.plan.val_batches and (last or (epoch + 1) % trainer.check_val_every_n_epoch == 0):
            self.evaluate("val", self.validation(), self.plan.val_batches)
            if state.preempted:
                return
            names += ["val/loss", "val/acc"]
            if trainer.early_stopping.patience is not None:
                state.judge(trainer.early_stopping)
        metrics = {name: state.metrics[name] for name in names if name in state.metrics}
        self.report.write(state.step, epoch, metrics)
        self.report.progress.validated(epoch, metrics)
        self.nan.look(state.step, metrics)
        state.close_epoch(self.plan)
        over = state.over(self.plan, trainer.early_stopping)
        if over or (epoch + 1) % self.config.checkpoint.every_n_epochs == 0:
            self.save(judged(metrics, self.config.checkpoint.monitor))

    def on_test_batch_end(self, batch: int, logs: object = None) -> None:
        """A validation need not be finished either."""
        self.look_at_flag()
        if self.state.preempted:
            self.classifier.stop_evaluating = True

    def evaluate(self, part: str, data: tf.data.Dataset, batches: int) -> None:
        """Measure `<part>/loss` and `<part>/acc` over some batches, into the state's metrics."""
        self.average_statistics()
        self.classifier.tally.take()
        self.classifier.evaluate(data, steps=batches, verbose=0, callbacks=[self])
        fresh = self.measured(part)
        if not self.state.preempted:
            self.state.metrics |= fresh

    def measured(self, part: str) -> dict[str, float]:
        """Mean loss and accuracy since the last call, over all ranks; all must call it at the same step."""
        wishes = [
            float(self.stop.requested is not None),
            float(self.saver is not None and self.interval.by_time()),
        ]
        sums = self.classifier.strategy.sum([*self.classifier.tally.take(), *wishes])
        loss, right, samples, to_stop, to_save = sums
        self.state.preempted |= to_stop > 0
        self.due = to_save > 0
        return {f"{part}/loss": loss / samples, f"{part}/acc": right / samples} if samples else {}

    def look_at_flag(self) -> None:
        """A process that is alone needs nobody's agreement to stop."""
        if self.classifier.strategy.processes == 1:
            self.state.preempted |= self.stop.requested is not None
            self.due = self.interval.by_time()

    def learning_rate(self) -> float:
        """Of the step that is just done."""
        o, plan = self.config.optimizer, self.plan
        base = scaled_lr(o.lr, o.scale_lr, self.classifier.strategy.replicas)
        return base * factor(
            self.config.schedule, self.state.step - 1, plan.steps_per_epoch, plan.total_steps
        )

    def average_statistics(self) -> None:
        """They are linear in what each replica saw: averaged late, they are what they would be anyway."""
        self.classifier.strategy.average_variables(self.classifier.moving_statistics())

    def save(self, value: float | None = None) -> None:
        """Write a checkpoint; `value` is the newly measured one of `checkpoint.monitor`."""
        self.average_statistics()
        self.due = False
        if self.saver:
            began = time.monotonic()
            self.saver.save(self.classifier, self.state, value)
            self.interval.saved(time.monotonic() - began)
