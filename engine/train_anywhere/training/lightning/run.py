"""Train one rank with Lightning's Trainer, from the configuration to the outcome."""

import gc
import traceback
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import distributed

from train_anywhere.checkpoints.recovery import open_checkpointer
from train_anywhere.config.checks.monitors import describe_best_checkpoint
from train_anywhere.config.checks.targets import task_has_network
from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import Splits
from train_anywhere.data.recorded import describe_data
from train_anywhere.data.torch.loader import BatchLoader, EpochSampler
from train_anywhere.data.torch.random_states import seed_everything
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import CheckpointError, ConfigError, iterate_causes
from train_anywhere.features import Features
from train_anywhere.features.feature import Observers, Rank
from train_anywhere.files.node_disk import find_run_folder, rank_folder
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.metrics_csv import CsvLog
from train_anywhere.runs.recorder import report_weights
from train_anywhere.training.early_stopping import Timer
from train_anywhere.training.event_files import EventFiles
from train_anywhere.training.lightning.checkpoint.contents import FILE, METADATA, Shards
from train_anywhere.training.lightning.checkpoint.state import CheckpointCallback, StateWriter
from train_anywhere.training.lightning.compiled_code import keep_compiled_code
from train_anywhere.training.lightning.dropin.model import (
    explain_lightning_errors,
    make_callbacks,
    make_loggers,
)
from train_anywhere.training.lightning.dropin.validated_weights import (
    END_HOOKS,
    changed_weights,
    copy_weights,
    overrides,
    user_hooks,
)
from train_anywhere.training.lightning.dropin.visible import RunCheckpoints, RunLogger, listen
from train_anywhere.training.lightning.loaders import LOADERS, count_rows
from train_anywhere.training.lightning.loop.callbacks import EarlyStop, MetricsCallback
from train_anywhere.training.lightning.loop.course import Agreement
from train_anywhere.training.lightning.loop.over_ranks import (
    OverRanks,
    read_weights,
    refuse_different_weights,
)
from train_anywhere.training.lightning.loop.tensorboard import TensorBoard, TorchRecording
from train_anywhere.training.lightning.setup import Setup
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy
from train_anywhere.training.lightning.weights import find_adapters, load_initial_weights
from train_anywhere.training.order import State, index_shards
from train_anywhere.training.plan import refuse_other_framework, resume_message
from train_anywhere.training.reporting.progress import Progress

EACH_BATCH = ("on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward",
              "on_before_optimizer_step", "on_train_batch_end", "on_validation_batch_start", "on_validation_batch_end")  # fmt: skip
"""Hooks of callbacks that Lightning calls in each step."""


class LightningTraining(Setup):
    """A run with Lightning, in the steps that src/train.py calls."""

    _opened = False

    def fit(self, trainer: pl.Trainer, model: pl.LightningModule, data: Splits) -> None:
        """Train from the newest checkpoint, if any. Raises TrainingStopped after a signal."""
        self.refuse_others(trainer=(trainer, self.trainer), data=(data, self.data))
        self._fits, self.module = True, model
        self._open()
        config, module, note, newest = self.config, self.module, self.progress.note, self.writer.newest
        seed_everything(config.seed)  # user code draws the same numbers as after Lightning's function
        adapters = find_adapters(module)
        if newest is None or adapters:  # checkpoints do not hold the base
            load_initial_weights(config.init, module, (lambda line: None) if newest else note)
        if adapters:
            note("Base:          {1}, sha256 {0:.12}".format(*adapters[1].identity))
        self._add_callbacks()
        self._add_loggers()
        path = newest.path / FILE if newest else None
        with explain_lightning_errors():
            trainer.fit(module, **self.loaders.arguments("train", "val"), ckpt_path=path, weights_only=True)
        if not config.trainer.fast_dev_run and self.checkpoints not in trainer.callbacks:
            raise ConfigError(
                "user code has removed this project's callbacks from trainer.callbacks, so nothing was saved; append to the list instead."
            )
        if line := self.course.early_end(trainer):
            note(line)
        check, unfinished = self.metrics.check, self.course.steps_done < self.plan.total_steps
        if (check.batches or unfinished) and (line := check.describe(trainer)):
            note(line)
        self.metrics.agreement.observers.at_end()
        if user_hooks(trainer, *END_HOOKS) and not config.trainer.fast_dev_run:
            self._save_end_weights()
        self.process.heartbeat.enter("checkpoint")  # the last one is published, and weights are compared
        if not self.writer.shards:
            if config.monitor.ranks:
                report_weights(self.process.run, self.process.topology, read_weights(module))
            refuse_different_weights(module, trainer)

    def _open(self) -> None:
        """Open what the training needs, and its newest checkpoint."""
        config, process = self.config, self.process
        self._writes = self.trainer.is_global_zero and not config.trainer.fast_dev_run
        self._recorder = process.recorder if self._writes else None
        self._sharded = isinstance(self.trainer.strategy, FullyShardedStrategy)
        self._rows: dict[str, int] = {}
        self.writer = self._open_writer()
        checkpointer, saved, choice = self.writer.checkpointer, self.writer.newest, config.checkpoint
        newest = lambda: checkpointer.newest if checkpointer else None  # noqa: E731
        form = config, process, self.plan, self.devices, self.data.facts
        progress = Progress(*form, TorchRecording, newest, lambda: self.course.steps_done)
        self.progress = self.stack.enter_context(progress)
        self.seen = RunCheckpoints(
            process.run.checkpoints, choice.monitor, choice.mode or "min", self.writer.close
        )
        if saved:
            store = checkpointer.store if checkpointer else None
            best = self.trainer.strategy.broadcast(store.rule.best(store.all()) if store else None)
            for one in filter(None, (best, saved)):
                self.seen.follow(one.path / FILE, one.value)
        self.metrics = self._make_metrics()
        self.checkpoints = CheckpointCallback(self.writer, self.metrics, self.seen)
        self.stack.enter_context(checkpointer or nullcontext())
        self._opened = True

    def test(self, trainer: pl.Trainer, model: pl.LightningModule, data: Splits) -> None:
        """Test the weights of the best checkpoint, or the current ones. Raises TrainingStopped."""
        loaders = self.loaders.arguments("test")
        if self._opened and self.plan.test_batches:
            best = self.writer.best(self.trainer)
            self.process.heartbeat.enter("test")
            with explain_lightning_errors():
                self.trainer.test(self.module, **loaders, ckpt_path=best, weights_only=True, verbose=False)
        elif not self._opened and self.loaders.has("test") and is_overridden("test_step", model):
            for values in trainer.test(model, **loaders, verbose=False):
                self.log_test(values)

    def close(self, state: State) -> Outcome | None:
        """Close the loggers and checkpoints, and return what the run has reached; None after a failure or without `fit`."""
        if not self._opened:
            return None
        if state == "failed" and self.writer.shards:
            with suppress(CheckpointError):  # the first error counts
                self.writer.shards.wait()
        for logger in (known for known in self.trainer.loggers if isinstance(known, RunLogger)):
            logger.close(state)
        if state == "failed":
            return None
        self.process.heartbeat.enter("end")
        self.writer.close()
        newest = self.writer.newest
        return Outcome(
            state=state,
            epoch=newest.epoch if newest else self.trainer.current_epoch,
            step=self.course.steps_done,
            metrics={name: value for name, value in self.metrics.metrics.items() if name != "lr"},
            checkpoint=str(newest.path) if newest else None,
            rate=self.progress.throughput.mean(),
            unit=self.progress.throughput.unit,
            ended_by=self.course.early_end(self.trainer),
        )

    def _loaders_opened(self, batches: float) -> None:
        """Print and record the facts of the run, where it continues, and which checkpoint will be the best."""
        super()._loaders_opened(batches)
        if not self._opened:
            return
        config, plan, saved, recorder = self.config, self.plan, self.writer.newest, self._recorder
        header = self.header(recorder.run.read_info().get("rows") or {} if recorder else {})
        self._rows = {name: count for name, count in header.rows.items() if count}
        if recorder:
            places = self.trainer.strategy.training_loaders.places  # type: ignore[attr-defined]
            workers = [getattr(place.loader, "num_workers", 0) for place in places]
            recorder.record_facts(header.record(config, plan) | {"own_workers": max(workers, default=None)})
        resumes = resume_message(saved, config, plan, self.trainer.world_size) if saved else None
        best = describe_best_checkpoint(config.task, config.checkpoint)
        for line in filter(None, (*header.lines(config, plan), resumes, best)):
            self.progress.note(line)

    def _note_rows(self, trainer: pl.Trainer) -> None:
        """Print and record the rows of an evaluation that Lightning opens after the header was printed."""
        split = "test" if trainer.testing else "validation"
        loaders = trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders
        if split not in self._rows and (count := count_rows(loaders)):
            self._rows[split] = count
            self.progress.note(f"{split.capitalize() + ':':<15}{count:,} rows")
            if self._recorder:
                self._recorder.record_facts({"rows": self._rows})

    def _open_writer(self) -> StateWriter:
        """Return the writer of checkpoints. The course is that of the newest one."""
        run, strategy, choice = self.process.run, self.trainer.strategy, self.config.checkpoint
        checkpointer = open_checkpointer(choice, run, sharded=self._sharded) if self._writes else None
        saved = strategy.broadcast(checkpointer.store.newest_good() if checkpointer else None)
        if self._recorder:
            self._recorder.record_first_step(saved.step if saved else 0)
            self._recorder.follow(lambda: self.course.steps_done)
        if saved:
            refuse_other_framework(saved, "lightning")
            if (saved.path / METADATA).exists() != self._sharded:
                written, fix = ("whole", "ddp") if self._sharded else ("in shards", "fsdp")
                raise CheckpointError(f"{saved.path} was written {written}; resume with strategy={fix}.")
            self.course.steps_done = saved.step
        shards = None
        if self._sharded:  # all ranks open them together
            local = find_run_folder(run.path, choice.local)
            shards = Shards(run.checkpoints, rank_folder(local, self.trainer.global_rank) if local else None)
        strategy.checkpoint_io = writer = StateWriter(checkpointer, shards, saved)
        return writer

    def _make_metrics(self) -> MetricsCallback:
        """Return the callback for the metrics, continued from those of the newest checkpoint."""
        config, process, trainer, saved = self.config, self.process, self.trainer, self.writer.newest
        recorder, facts = self._recorder, self.data.facts
        rank = Rank(process.run, first_device=trainer.global_rank, devices=trainer.world_size)
        observers = Observers(Features.of(config).observers(rank))
        timer = Timer(config.trainer, saved.seconds if saved else 0.0)
        agreement = Agreement(self.course, process.stop, timer, self.progress, observers, self._writes)
        monitors = [config.checkpoint.monitor, config.trainer.early_stopping.monitor]
        over_ranks = OverRanks(trainer, self.module, monitors) if trainer.world_size > 1 else None
        record = (lambda batch: recorder.record_facts(describe_data(batch, facts))) if recorder else None
        csv = None
        if config.monitor.csv and self._writes:
            csv = CsvLog(
                process.run.metrics_csv, [f"{part}/{n}" for part in LOADERS for n in config.task.monitors]
            )
            csv.resume(self.course.steps_done)
        metrics = MetricsCallback(config, agreement, over_ranks, csv, record, self._note_rows)
        metrics.metrics |= saved.metrics if saved else {}
        return metrics

    def _add_callbacks(self) -> None:
        """Add the clock first, then the user's callbacks: the one that saves comes last."""
        trainer, module, config, metrics = self.trainer, self.module, self.config, self.metrics
        optimizer, saves = self.optimizer, [] if config.trainer.fast_dev_run else [self.checkpoints]
        trainer.strategy.training_loaders.report = self.progress.report  # type: ignore[attr-defined]
        own = task_has_network(config.task, "lightning") and is_overridden("configure_optimizers", module)
        if not is_overridden("configure_optimizers", module):
            module.configure_optimizers = lambda: optimizer.make_optimizer(module)  # type: ignore[method-assign]
        if own and config.optimizer.groups:
            self.progress.note(
                "optimizer.groups has no effect: this module has its own configure_optimizers."
            )
        stopping = config.trainer.early_stopping
        stops = stopping.patience is not None and stopping.monitor
        trainer.callbacks = [
            metrics.clock,
            *([metrics.over_ranks] if metrics.over_ranks else []),
            self.checkpoints.weights,
            *trainer.callbacks,
            *([] if own else [optimizer]),
            *make_callbacks(config.callbacks, self._sharded),
            self.seen,
            self.checkpoints.rank_state,
            metrics,
            *([EarlyStop(metrics)] if stops else []),
            *saves,
        ]
        for callback in trainer.callbacks:
            if type(callback).__module__.startswith("train_anywhere."):
                # Lightning leaves out what can't be called; ten calls of a hook that does nothing cost a small model's step 15 %
                vars(callback).update({hook: None for hook in EACH_BATCH if not overrides(callback, hook)})

    def _add_loggers(self) -> None:
        """Add the loggers of the configuration, TensorBoard, and metrics.csv."""
        config, run = self.config, self.process.run
        loggers: list[Logger] = []
        if not config.trainer.fast_dev_run:
            loggers += make_loggers(config, run, self.trainer.is_global_zero)
            if config.monitor.tensorboard:
                # Lightning counts steps from 0
                loggers.append(TensorBoard(EventFiles(run.tensorboard), self.course.steps_done - 1))
        if config.monitor.csv and not loggers:
            loggers.append(RunLogger("run", run.path, run.id))
        listen(self.trainer, loggers, self.metrics.receive)

    def _save_end_weights(self) -> None:
        """Validate and save again if end hooks changed the weights. Raises TrainingStopped."""
        trainer, module, writer, saved = self.trainer, self.module, self.writer, dict[str, Any]()
        late = bool(changed_weights(module, self.checkpoints.weights.before_end))
        if late and writer.shards:
            self.progress.note(
                "on_train_end or on_fit_end changes the weights: with fsdp, the weights from before it are saved and tested."
            )
        elif late:
            writer.close()
            assert writer.newest
            saved = torch.load(writer.newest.path / FILE, map_location="cpu", weights_only=True)
            late = bool(changed_weights(module, saved["state_dict"]))
        if not trainer.strategy.broadcast(late and not writer.shards):
            return
        if self.plan.val_batches:
            loaders = self.loaders.arguments("val")
            named = {name.removeprefix("val_"): loader for name, loader in loaders.items()}
            with explain_lightning_errors():
                trainer.validate(module, **named, verbose=False)
        self.metrics.epoch_over(trainer, module)
        if trainer.is_global_zero:
            self.checkpoints.save_again(saved, copy_weights(module))

    # --- for a loop in place of `fit`: docs/how-to/own-loop.md --------------------------------------------

    def batches(self) -> Iterator[Any]:
        """Yield this rank's batches of training data without end. Raises ConfigError for other loaders."""
        loader, loop = self.loaders.opened.get("train"), self._own_loop()
        if not isinstance(loader, BatchLoader):
            raise ConfigError("this data has a loader of its own: iterate over it instead of run.batches().")
        assert isinstance(loader.sampler, EpochSampler)
        loop.epoch, first = divmod(loop.step, len(loader))
        loader.sampler.start_at(loop.epoch, first)
        while True:
            loader.sampler.set_epoch(loop.epoch)
            yield from loader
            loop.epoch += 1

    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag is true on a rank. All ranks call this."""
        return bool(self.trainer.strategy.reduce_boolean_decision(flag, all=False))

    def share(self, value: Any) -> Any:
        """Return the value of rank 0. All ranks call this."""
        return self.trainer.strategy.broadcast(value)


def train(config: Config, process: RankProcess) -> Outcome:
    """Train from the newest checkpoint, if any, and test. All ranks call it. Raises errors."""
    index_shards(config, process)
    recorder = process.recorder
    try:
        with keep_compiled_code(config, process.topology.rank):
            outcome = LightningTraining(config, process).run()
    except BaseException as error:
        if recorder and recorder.steps_done:
            steps = recorder.steps_done()
            recorder.follow(lambda: steps)
        for cause in iterate_causes(error):
            traceback.clear_frames(cause.__traceback__)
        # destroying NCCL's group would wait for dead ranks, and it does not have Gloo's threads
        gloo = distributed.is_initialized() and distributed.get_backend() == "gloo"
        if gloo and not isinstance(error, KeyboardInterrupt):
            process.disconnect.append(end_process_group)
        raise
    if recorder:
        recorder.follow(None)  # the function references the Trainer, and so the process group
    end_process_group()
    return outcome


def make_setup(config: Config, topology: Topology) -> Setup:
    """Return what a run has before its training, for benchmarks and tests."""
    setup = LightningTraining(config, RankProcess(RunDir(Path()), topology, Stop()))
    setup.make_trainer()
    setup.make_model(setup.open_data())
    return setup


def end_process_group() -> None:
    """Destroy the process group and its threads, when nothing else references it.

    A thread of Gloo frees the tensors that it has sent some time later, for which it needs Python. If Python ends
    before, the process aborts with "terminate called without an active exception", see
    https://github.com/pytorch/pytorch/issues/190489. Dropping the last reference to the group waits for its threads.
    """
    if distributed.is_initialized():
        distributed.destroy_process_group()
        gc.collect()  # the Trainer and its objects
