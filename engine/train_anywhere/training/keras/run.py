"""Train one rank with Keras, from the configuration to the outcome."""

import math
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any

import keras
import tensorflow as tf

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.checkpoints.recovery import open_checkpointer
from train_anywhere.config.checks.monitors import describe_best_checkpoint
from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import Splits
from train_anywhere.data.open_data import open_splits
from train_anywhere.data.recorded import describe_data
from train_anywhere.data.tf.pipeline import plain_data_errors
from train_anywhere.data.tf.streams import Stream
from train_anywhere.distributed.layout import running_strategy
from train_anywhere.features import Features
from train_anywhere.job.rank_process import RankProcess, TrainingStopped
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.recorder import report_weights
from train_anywhere.training.keras.checkpoint import (
    RAW_WEIGHTS,
    Position,
    restore_or_initialize,
    restore_variables,
)
from train_anywhere.training.keras.dropin.model import open_model
from train_anywhere.training.keras.loop.callbacks import TrainingCallback
from train_anywhere.training.keras.loop.step_work import Stopped
from train_anywhere.training.keras.loop.tensorboard import TensorFlowRecording
from train_anywhere.training.keras.module import Module
from train_anywhere.training.keras.strategies.base import Strategy
from train_anywhere.training.keras.strategies.choose import make_strategy
from train_anywhere.training.order import State, Training, index_shards
from train_anywhere.training.plan import (
    batchnorm_notes,
    device_count_message,
    resume_message,
    validation_notes,
)
from train_anywhere.training.reporting.header import Header, cpu_name
from train_anywhere.training.reporting.progress import Progress


def train(config: Config, process: RankProcess) -> Outcome:
    """Train from the newest checkpoint, if any, and test. All ranks call it. Raises errors."""
    index_shards(config, process)
    with plain_data_errors():
        return KerasTraining(config, process).run()


class KerasTraining(Training):
    """A run with Keras, in the steps that src/train.py calls."""

    _callback: TrainingCallback | None = None
    _newest: SavedCheckpoint | None = None

    def make_trainer(self) -> Strategy:
        """Return the strategy, whose ranks have connected."""
        config, process, trainer = self.config, self.process, self.config.trainer
        tf.config.experimental.enable_tensor_float_32_execution(trainer.tf32)
        # a single rank may have several devices
        self._name, devices = running_strategy(config, process.topology)
        # on a CPU results are reproducible bit for bit without it, and it serializes the threads that read data
        if trainer.deterministic:
            tf.config.experimental.enable_op_determinism()
        process.heartbeat.at("meeting")
        self.strategy = make_strategy(self._name, config, process.topology, devices)
        if trainer.deterministic:
            self.strategy.pace.turn_off()  # TensorFlow has no deterministic time stamps
        process.stop.reinstall()  # TensorFlow's server for several processes replaces the handler of SIGTERM
        process.heartbeat.at("preparing")
        self.stack.enter_context(self.strategy.explain_lost_ranks())
        keras.utils.clear_session()  # resets the numbers in layer names, and so in the paths of variables
        keras.utils.set_random_seed(config.seed)
        return self.strategy

    def open_data(self) -> Splits:
        """Return the splits of `data=`. Raises DataError."""
        return open_splits(self.config.data, "keras", self.config.seed, Features.of(self.config).stager)

    def make_model(self, data: Splits) -> keras.Model:
        """Return the compiled model of `task=`. Raises ConfigError, DataError."""
        self._data = data
        self._module, self._loader, self._plan = open_model(self.config, self.strategy, data)
        self._module.notes += [*data.notes, *validation_notes(self.config.trainer, self._plan)]
        return self._module.model

    def fit(self, trainer: Strategy, model: keras.Model, data: Splits) -> None:
        """Train from the newest checkpoint, if any. Raises TrainingStopped after a signal."""
        self._fits = True
        self.refuse_others(
            trainer=(trainer, self.strategy), model=(model, self._module.model), data=(data, self._data)
        )
        callback, module, process = self._open(), self._module, self.process
        position, progress = callback.position, callback.progress
        before, first = fingerprint(module), position.step
        callback.fit()
        if not position.preempted:
            callback.observers.at_end()
        if position.step > first and before and fingerprint(module) == before:
            progress.note(
                f"nothing was trained: {position.step - first} steps changed no weight and called no optimizer; let train_step apply the "
                "gradients (self.optimizer.apply)."
            )
        process.heartbeat.enter("checkpoint")  # also while the weights are compared
        if self.config.monitor.ranks:
            weights = (v.numpy().tobytes() for v in module.model.trainable_variables)
            report_weights(process.run, process.topology, weights)
        module.refuse_different_weights()
        if callback.checkpointer:
            callback.checkpointer.finish()
            self._newest = callback.checkpointer.newest or self._newest
        if position.preempted:
            raise TrainingStopped

    def test(self, trainer: Strategy, model: keras.Model, data: Splits) -> None:
        """Test the weights of the best checkpoint, or of the newest one. Raises TrainingStopped."""
        if not self._plan.test_batches:
            return
        if self._callback is None:
            metrics = self._module.measure("test", self._loader.evaluation("test", self._plan.test_batches))
            self.log_test({name.removeprefix("test/"): value for name, value in metrics.items()})
            return
        callback, module, position = self._callback, self._module, self._callback.position
        best = callback.checkpointer.store.best() if callback.checkpointer else None
        saved = best or self._newest

        def load() -> None:
            if saved and (best or callback.has_users or (saved.path / RAW_WEIGHTS).exists()):
                restore_variables(saved.path / "weights.npz", module.weights())
            module.strategy.broadcast_variables(list(module.weights().values()))

        with suppress(Stopped):
            callback.evaluate("test", load)
        if position.preempted:
            raise TrainingStopped
        metrics = {name: value for name, value in position.metrics.items() if name.startswith("test/")}
        last = position.epoch if position.batch else max(0, position.epoch - 1)  # the epoch of the last batch
        callback.write(position.step, last, metrics)

    def batches(self) -> Iterator[Any]:
        """Yield this rank's batches of training data without end."""
        loop, plan = self._own_loop(), self._plan
        epoch, first = divmod(loop.step, plan.train_batches)
        position = Position(step=loop.step, epoch=epoch, batch=first)
        for number, batch in enumerate(self._loader.training(plan, position), loop.step):
            loop.epoch = number // plan.train_batches
            yield batch

    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag is true on a rank. All ranks call this."""
        return self.strategy.sum([float(flag)])[0] > 0

    def share(self, value: Any) -> Any:
        """Return the value of rank 0. All ranks call this."""
        return self.strategy.broadcast_json(value)

    def _open(self) -> TrainingCallback:
        """Open the checkpoints, restore the newest one, and open the progress and the metrics."""
        config, process, strategy = self.config, self.process, self.strategy
        module, plan, run = self._module, self._plan, process.run
        writes = strategy.rank == 0 and not config.trainer.fast_dev_run
        recorder = process.recorder if writes else None
        checkpointer = open_checkpointer(config.checkpoint, run) if writes else None
        newest = self._newest = checkpointer.store.newest_good() if checkpointer else None
        if recorder:
            recorder.record_first_step(newest.step if newest else 0)
        position, state = restore_or_initialize(config, module, newest)
        if recorder:
            recorder.follow(lambda: position.step)
        newest_written = lambda: checkpointer.newest if checkpointer else None  # noqa: E731
        form = config, process, plan, strategy.replicas, self._data.facts
        progress = Progress(*form, TensorFlowRecording, newest_written)
        self.stack.enter_context(checkpointer or nullcontext())
        self.stack.enter_context(progress)
        header = self._describe()
        if recorder:
            known = describe_data(module.spec, self._data.facts)
            own = {"own_workers": 0 if isinstance(self._loader.splits["train"], Stream) else None}
            recorder.record_facts(header.record(config, plan) | known | own)
        lines = [*header.lines(config, plan), describe_best_checkpoint(config.task, config.checkpoint)]
        if newest:
            lines.append(resume_message(newest, config, plan, strategy.replicas))
        if state and state["devices"] != strategy.replicas:
            lines.append(device_count_message(state["devices"], strategy.replicas))
        names = (variable.name for variable in module.model.non_trainable_variables)
        for line in filter(None, [*lines, *module.notes, *batchnorm_notes(config, names)]):
            progress.note(line)
        self._callback = TrainingCallback(
            config, process, plan, position, module, self._loader, progress, checkpointer, state
        )
        return self._callback

    def _describe(self) -> Header:
        """Return the facts of the run for its first lines."""
        gpus = tf.config.list_physical_devices("GPU")
        details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
        rows, unit = dict[str, int | None](), ""
        for word, split in (("training", "train"), ("validation", "val"), ("test", "test")):
            if (data := self._loader.splits[split]) is not None:
                before, unit = unit, " batches" if isinstance(data, Stream) else " rows"
                counted = word if unit == before else word + unit
                rows[counted] = data.length if isinstance(data, Stream) else len(data)
        model = self._module.model
        return Header(
            model=self.config.model.name if self._module.network else type(model).__name__,
            parameters=model.count_params(),
            trained=sum(math.prod(v.shape) for v in model.trainable_variables),
            rows=rows,
            device=details.get("device_name", "GPU") if gpus else cpu_name(),
            devices=self.strategy.replicas,
            strategy=self._name,
        )

    def close(self, state: State) -> Outcome | None:
        """Close the loggers, and return what the run has reached; None after a failure or without `fit`."""
        callback = self._callback
        for logger in callback.loggers if callback else ():
            logger.finalize(state)
        if callback is None or state == "failed":
            return None
        self.process.heartbeat.enter("end")
        position, throughput = callback.position, callback.progress.throughput
        return Outcome(
            state,
            position.epoch,
            position.step,
            {k: v for k, v in (position.metrics | callback.added).items() if k != "lr"},
            str(self._newest.path) if self._newest else None,
            throughput.mean(),
            throughput.unit,
            callback.ended_by,
        )


def fingerprint(module: Module) -> list[float]:
    """Return a number for each trainable weight and variable of the optimizers."""
    variables = [*module.model.trainable_variables, *module.optimizer_state().values()]
    return [float(tf.reduce_sum(tf.abs(tf.cast(tf.convert_to_tensor(v), tf.float64)))) for v in variables]
