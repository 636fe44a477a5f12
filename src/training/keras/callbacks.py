"""What happens between the steps of `fit`: metrics, validation, early stopping, checkpoints, stopping."""

import time
from collections.abc import Callable

import keras
import tensorflow as tf

from src import tasks
from src.checkpoints.interval import Interval
from src.config.schema import Config
from src.training.keras.checkpoint import StateWriter
from src.training.keras.module import Classifier
from src.training.keras.position import Position
from src.training.keras.tensorboard import MetricsWriter
from src.training.nan_watch import NanWatch, judged
from src.training.plan import Plan, validation_due
from src.training.schedules import learning_rate
from src.training.stop import Stop


class TrainingCallback(keras.callbacks.Callback):
    """The order of events around the steps. Keras hands it no logs: numbers come from the model's sums.

    Reading the sums waits for the device and, with several ranks, is a collective. So they are read every
    `log_every_n_steps` steps and at the end of an epoch, together with the requests of any rank to stop and of
    rank 0 to save.

    Args:
        checkpoints: on rank 0, None on the others.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        position: Position,
        model: Classifier,
        metrics: MetricsWriter,
        checkpoints: StateWriter | None,
        stop: Stop,
        validation: Callable[[], tf.data.Dataset],
    ) -> None:
        super().__init__()
        self.config, self.plan, self.position, self.classifier = config, plan, position, model
        self.metrics, self.checkpoints, self.stop, self.validation = metrics, checkpoints, stop, validation
        self.interval = Interval(config.checkpoint, model.strategy.replicas)
        self.save_requested = False
        self.nan = NanWatch(config.trainer.detect_nan, model.strategy.rank == 0)

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """After each optimizer step."""
        position, before = self.position, self.position.batch
        if self.checkpoints:
            self.checkpoints.checkpointer.check()
        position.advance(self.plan)
        fresh = None
        if position.pending or position.step % self.config.trainer.log_every_n_steps == 0:
            fresh = self.reduce("train") | {"lr": self.learning_rate()}
            position.metrics |= fresh
            if not position.pending:  # at the end of the epoch, in one row with the validation
                self.metrics.write(position.step, position.epoch, fresh)
                self.nan.look(position.step, fresh)
        for number in range(before, position.batch):
            newest = fresh if number + 1 == position.batch else None
            self.metrics.progress.batch(position.epoch, number, newest)
        self.look_at_flag()
        due = self.save_requested or self.interval.by_step(position.step)
        if due and not (position.pending or position.preempted):
            self.save()
        self.classifier.stop_training = position.preempted

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """After the last step of an epoch, or the one in which `fit` was stopped."""
        if self.position.pending and not self.position.preempted:
            self.end_epoch()
        over = self.position.over(self.plan, self.config.trainer.early_stopping)
        self.classifier.stop_training = over or self.position.preempted

    def end_epoch(self) -> None:
        """Validation, early stopping, checkpoint; a run that was stopped before them resumes here."""
        position, trainer, epoch = self.position, self.config.trainer, self.position.epoch
        names = [*tasks.names("train"), "lr"]
        if validation_due(trainer, self.plan, epoch, position.step):
            self.evaluate("val", self.validation(), self.plan.val_batches)
            if position.preempted:
                return
            names += tasks.names("val")
            if trainer.early_stopping.patience is not None:
                position.patience.judge(
                    position.metrics[trainer.early_stopping.monitor], trainer.early_stopping
                )
        metrics = {name: position.metrics[name] for name in names if name in position.metrics}
        self.metrics.write(position.step, epoch, metrics)
        self.metrics.progress.validated(epoch, metrics)
        self.nan.look(position.step, metrics)
        position.close_epoch(self.plan)
        over = position.over(self.plan, trainer.early_stopping)
        if over or (epoch + 1) % self.config.checkpoint.every_n_epochs == 0:
            self.save(judged(metrics, self.config.checkpoint.monitor))

    def on_test_batch_end(self, batch: int, logs: object = None) -> None:
        """A signal may interrupt a validation or a test too."""
        self.look_at_flag()
        if self.position.preempted:
            self.classifier.stop_evaluating = True

    def evaluate(self, part: str, data: tf.data.Dataset, batches: int) -> None:
        """Measure the metrics of a part over some batches, into those of the position."""
        self.average_statistics()
        self.classifier.sums.take()
        self.classifier.evaluate(data, steps=batches, verbose=0, callbacks=[self])
        fresh = self.reduce(part)
        if not self.position.preempted:
            self.position.metrics |= fresh

    def reduce(self, part: str) -> dict[str, float]:
        """Metrics since the last call, over all ranks, and the agreement to stop; all must call it at the same step."""
        requests = [
            float(self.stop.requested is not None),
            float(self.checkpoints is not None and self.interval.by_time()),
        ]
        *sums, to_stop, to_save = self.classifier.strategy.sum([*self.classifier.sums.take(), *requests])
        self.position.preempted |= to_stop > 0
        self.save_requested = to_save > 0
        return tasks.metrics(part, sums)

    def look_at_flag(self) -> None:
        """A single process needs no agreement to stop."""
        if self.classifier.strategy.processes == 1:
            self.position.preempted |= self.stop.requested is not None
            self.save_requested = self.interval.by_time()

    def learning_rate(self) -> float:
        """Of the step that is just done."""
        return learning_rate(
            self.config, self.plan, self.position.step - 1, self.classifier.strategy.replicas
        )

    def average_statistics(self) -> None:
        """Moving statistics are linear in the batches, so averaging them late gives the same values."""
        self.classifier.strategy.average_variables(self.classifier.moving_statistics())

    def save(self, value: float | None = None) -> None:
        """Write a checkpoint; `value` is the newly measured one of `checkpoint.monitor`."""
        self.average_statistics()
        self.save_requested = False
        if self.checkpoints:
            began = time.monotonic()
            self.checkpoints.save(self.classifier, self.position, value)
            self.interval.saved(time.monotonic() - began)
