"""Train one rank with Lightning, from the configuration to the outcome."""

import gc
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, distributed, nn

from train_anywhere.checkpoints.choice import list_weight_files, read_chosen, select_weights
from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.schema import Config, Init
from train_anywhere.data.dataset import Splits
from train_anywhere.data.recorded import describe_data
from train_anywhere.data.torch.loader import BatchLoader, EpochSampler
from train_anywhere.errors import CheckpointError, ConfigError, iterate_causes
from train_anywhere.features import Features
from train_anywhere.features.feature import Observers, Rank
from train_anywhere.files.atomic import make_folder, write_atomic
from train_anywhere.job.rank_process import RankProcess
from train_anywhere.runs.attempts import Outcome, launch_id
from train_anywhere.runs.folder import RunDir, open_run
from train_anywhere.runs.recorder import RunRecorder, report_weights
from train_anywhere.training.adapters import refuse_adapters_alone, refuse_other_base
from train_anywhere.training.early_stopping import Timer
from train_anywhere.training.lightning.checkpoint.position import seed_everything
from train_anywhere.training.lightning.checkpoint.restorer import StoredWeights
from train_anywhere.training.lightning.checkpoint.state import (
    FILE,
    CheckpointCallback,
    StateWriter,
)
from train_anywhere.training.lightning.dropin.loggers import RunLogger
from train_anywhere.training.lightning.dropin.model import explain_lightning_errors
from train_anywhere.training.lightning.dropin.validated_weights import (
    END_HOOKS,
    changed_weights,
    copy_weights,
    user_hooks,
)
from train_anywhere.training.lightning.loop.callbacks import (
    Agreement,
    MetricsCallback,
)
from train_anywhere.training.lightning.loop.early_stop import TrainingCheck
from train_anywhere.training.lightning.loop.over_ranks import OverRanks
from train_anywhere.training.lightning.loop.tensorboard import TorchRecording
from train_anywhere.training.lightning.setup import (
    Setup,
    add_callbacks,
    add_loggers,
    connect_trainer,
    describe,
    make_module,
    min_seconds_per_token,
    note_start,
    open_data,
    open_writer,
    refuse_different_weights,
)
from train_anywhere.training.lightning.weights import FileWeights, find_adapters, read_base, stored_base
from train_anywhere.training.order import State, Training, index_shards
from train_anywhere.training.plan import refuse_other_framework, uneven_rows_note
from train_anywhere.training.profile import StepProfile
from train_anywhere.training.reporting.display import Display
from train_anywhere.training.reporting.progress import Progress


def load_initial_weights(init: Init, module: nn.Module, report: Callable[[str], None]) -> None:
    """Load the weights that `init` names, if any, on every rank.

    Raises:
        CheckpointError: the weights can't be read, or do not fit.
    """
    if init.run is None:
        return

    def read(saved: SavedCheckpoint) -> StoredWeights:
        refuse_other_framework(saved, "lightning")
        return StoredWeights(saved.path)

    files, found = list_weight_files(init.run), find_adapters(module)
    stored: StoredWeights | FileWeights | None = None
    if not files:
        stored = read_chosen(open_run(init.run), init.checkpoint, read)
        if base := stored_base(stored.shapes):
            saved = read_base(stored.read(base))
            if found is None:
                refuse_adapters_alone(init.run, saved[1])
            else:
                refuse_other_base(f"init.run={init.run}", saved, found[1].identity)
            del stored.shapes[base]
            found = None  # its adapters are loaded, not its base
    if found:
        prefix, adapters = found
        own = {prefix + name: tensor for name, tensor in adapters.base_weights().items()}
    else:
        state = module.state_dict()
        own = {n: t for n, t in state.items() if isinstance(t, Tensor) and n != stored_base(state)}
    shapes = {name: tuple(value.shape) for name, value in own.items()}
    stored = stored or FileWeights(files, shapes)
    taken = select_weights(shapes, stored.shapes, init, report)
    if found:
        adapters.set_base({name.removeprefix(prefix): stored.read(name) for name in taken})
        return
    module.load_state_dict({n: stored.read(n) for n in taken if not own[n].is_meta}, strict=False)


def train(config: Config, process: RankProcess) -> Outcome:
    """Train from the newest checkpoint, if any, and test. All ranks call it. Raises errors."""
    index_shards(config, process)
    recorder = process.recorder
    try:
        outcome = LightningTraining(config, process).run()
    except BaseException as error:
        if recorder and recorder.steps_done:
            steps = recorder.steps_done()
            recorder.follow(lambda: steps)
        save_memory_snapshot(process, error)  # while the frames hold their tensors
        clear_frames(error)
        # destroying NCCL's group would wait for dead ranks, and it does not have Gloo's threads
        gloo = distributed.is_initialized() and distributed.get_backend() == "gloo"
        if gloo and not isinstance(error, KeyboardInterrupt):
            process.disconnect.append(end_process_group)
        raise
    if recorder:
        recorder.follow(None)  # the function references the Trainer, and so the process group
    end_process_group()
    return outcome


def save_memory_snapshot(process: RankProcess, error: BaseException) -> None:
    """Write what is allocated on the GPU to RUN/debug, after it ran out of memory."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        file = process.run.debug / f"{launch_id()}-rank-{process.topology.rank}-memory.pickle"
        with suppress(Exception):  # such as a full disk
            make_folder(process.run.debug)
            segments = torch.cuda.memory_snapshot()
            write_atomic(file, pickle.dumps({"segments": segments, "device_traces": []}))
            error.memory_snapshot = file  # for launch/failure.py


class LightningTraining(Training):
    """A run with Lightning, in the steps that src/train.py calls."""

    _setup: Setup
    _checkpoints: CheckpointCallback | None = None
    _progress: Progress

    def make_trainer(self) -> pl.Trainer:
        """Return the Trainer, after the ranks have connected."""
        self._trainer = connect_trainer(
            self.config, self.process.topology, self.process.heartbeat, self.process.run.path
        )
        return self._trainer

    def open_data(self) -> Splits:
        """Return the splits of `data=`. Raises DataError."""
        return open_data(self.config, self.process.topology)

    def make_model(self, data: Splits) -> pl.LightningModule:
        """Return the module of `task=`. Raises ConfigError, DataError."""
        self._data = data
        self._setup = make_module(self.config, self.process.topology, self._trainer, data)
        return self._setup.module

    def fit(self, trainer: pl.Trainer, model: pl.LightningModule, data: Splits) -> None:
        """Train from the newest checkpoint, if any. Raises TrainingStopped after a signal."""
        self.refuse_others(trainer=(trainer, self._trainer), data=(data, self._data))
        self._fits, self._setup = True, replace(self._setup, module=model)
        setup = self._setup
        config, topology = self.config, self.process.topology
        checkpoints = self._open()
        fit(setup, checkpoints, self.process.run)
        checkpoints.agreement.observers.at_end()
        if user_hooks(setup.trainer, *END_HOOKS) and not config.trainer.fast_dev_run:
            save_end_weights(setup, checkpoints)
        # the last checkpoint is published, and weights are compared
        checkpoints.metrics.heartbeat.enter("checkpoint")
        if not checkpoints.writer.shards:
            if config.monitor.ranks:
                weights = (p.detach().cpu().numpy().tobytes() for p in model.parameters())
                report_weights(self.process.run, topology, weights)
            refuse_different_weights(model, setup.trainer.strategy)

    def test(self, trainer: pl.Trainer, model: pl.LightningModule, data: Splits) -> None:
        """Test the weights of the best checkpoint, or the current ones. Raises TrainingStopped."""
        if self._checkpoints:
            if self._setup.plan.test_batches:
                test(self._setup, self._checkpoints)
        elif self._setup.loaders.has("test") and is_overridden("test_step", model):
            loaders = self._setup.loaders.arguments("test")
            for values in trainer.test(model, **loaders, verbose=False):
                self.log_test(values)

    def batches(self) -> Iterator[Any]:
        """Yield this rank's batches of training data without end. Raises ConfigError for other loaders."""
        loader, loop = self._setup.loaders.train, self._own_loop()
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
        return bool(self._trainer.strategy.reduce_boolean_decision(flag, all=False))

    def share(self, value: Any) -> Any:
        """Return the value of rank 0. All ranks call this."""
        return self._trainer.strategy.broadcast(value)

    def _open(self) -> CheckpointCallback:
        """Open the progress and the checkpoints; `__exit__` closes them."""
        setup, config, process = self._setup, self.config, self.process
        trainer, writers = setup.trainer, list[StateWriter]()  # none before the checkpoints are opened
        self._progress = progress = self.stack.enter_context(open_progress(setup, config, process, writers))
        recorder = process.recorder if progress.live else None
        setup.course.when_opened(lambda _: print_header(setup, config, progress, recorder))
        writer, seen = open_writer(trainer, setup.course, process.run, config, process.recorder)
        writers.append(writer)
        metrics = make_metrics(setup, config, process, progress, writer.newest)
        self._checkpoints = checkpoints = CheckpointCallback(writer, metrics, seen)
        setup.course.when_opened(lambda _: note_start(trainer, checkpoints))
        self.stack.enter_context(writer.checkpointer or nullcontext())
        return checkpoints

    def close(self, state: State) -> Outcome | None:
        """Close what `fit` has opened, and return what the run has reached; None without `fit`."""
        if self._checkpoints is None:
            return None
        writer, trainer, progress = self._checkpoints.writer, self._setup.trainer, self._progress
        course = self._setup.course
        if state == "failed":
            with suppress(CheckpointError):  # the first error counts
                writer.publish_shards()
        for logger in (known for known in trainer.loggers if isinstance(known, RunLogger)):
            logger.close(state)
        if state == "failed":
            return None
        self.process.heartbeat.enter("end")
        writer.close()
        metrics = self._checkpoints.metrics.metrics
        return Outcome(
            state=state,
            epoch=writer.newest.epoch if writer.newest else trainer.current_epoch,
            step=course.steps_done,
            metrics={name: value for name, value in metrics.items() if name != "lr"},
            checkpoint=str(writer.newest.path) if writer.newest else None,
            rate=progress.throughput.mean(),
            unit=progress.throughput.unit,
            ended_by=course.early_end(trainer),
        )


def open_progress(
    setup: Setup, config: Config, process: RankProcess, writers: Sequence[StateWriter]
) -> Progress:
    """Return the progress of the run, with the checkpoints of the writer once there is one."""
    trainer, plan, run = setup.trainer, setup.plan, process.run
    kind = config.monitor.progress if trainer.is_global_zero else "none"
    display, profile = Display(kind, plan.total_steps * plan.accumulate), None
    if not config.trainer.fast_dev_run:
        rank, steps = process.topology.rank, config.trainer.profiler
        profile = StepProfile(run, rank, steps, TorchRecording, display.note)

    def newest() -> SavedCheckpoint | None:
        checkpointer = writers[0].checkpointer if writers else None
        return checkpointer.newest if checkpointer else None

    return Progress(
        display,
        plan,
        setup.devices,
        setup.facts.get("unit", "samples"),
        min_seconds=min_seconds_per_token(setup, config.trainer),
        units_per_row=setup.facts.get("units_per_row", 1),
        live=run.path if trainer.is_global_zero and not config.trainer.fast_dev_run else None,
        heartbeat=process.heartbeat,
        newest=newest,
        record=process.recorder.record_note if process.recorder else None,
        steps_done=lambda: setup.course.steps_done,
        profile=profile,
    )


def print_header(setup: Setup, config: Config, progress: Progress, recorder: RunRecorder | None) -> None:
    """Print and record the facts of the run."""
    header = describe(setup, config)
    for line in header.lines(config, setup.plan):
        progress.note(line)
    if recorder:
        own = [
            getattr(place.loader, "num_workers", 0)
            for place in setup.trainer.strategy.training_loaders.places
        ]
        recorder.record_facts(header.record(config, setup.plan) | {"own_workers": max(own, default=None)})
    rows = header.rows.get("validation")
    if rows and (uneven := uneven_rows_note("validation", rows, setup.trainer.world_size)):
        progress.note(uneven)


def make_metrics(
    setup: Setup, config: Config, process: RankProcess, progress: Progress, saved: SavedCheckpoint | None
) -> MetricsCallback:
    """Return the callback for the metrics, continued from those of the checkpoint `saved`."""
    trainer = setup.trainer
    rank = Rank(process.run, first_device=trainer.global_rank, devices=trainer.world_size)
    observers = Observers(Features.of(config).observers(rank))
    writes = trainer.is_global_zero and not config.trainer.fast_dev_run
    timer = Timer(config.trainer, saved.seconds if saved else 0.0)
    agreement = Agreement(setup.course, process.stop, timer, progress, observers, writes)
    monitors = [config.checkpoint.monitor, config.trainer.early_stopping.monitor]
    over_ranks = OverRanks(trainer, setup.module, monitors) if trainer.world_size > 1 else None
    recorder = process.recorder if writes else None

    def record(batch: Any) -> None:
        assert recorder
        recorder.record_facts(describe_data(batch, setup.facts))

    metrics = MetricsCallback(
        config, setup.course, progress, agreement, over_ranks, record if recorder else None
    )
    if saved:
        metrics.resume(saved.metrics)
    return metrics


def clear_frames(error: BaseException) -> None:
    """Clear the local variables in the tracebacks of an error and its causes."""
    for cause in iterate_causes(error):
        traceback.clear_frames(cause.__traceback__)


def end_process_group() -> None:
    """Destroy the process group and its threads, when nothing else references it.

    A thread of Gloo frees the tensors that it has sent some time later, for which it needs Python. If Python ends
    before, the process aborts with "terminate called without an active exception", see
    https://github.com/pytorch/pytorch/issues/190489. Dropping the last reference to the group waits for its threads.
    """
    if distributed.is_initialized():
        distributed.destroy_process_group()
        gc.collect()  # the Trainer and its objects


def fit(setup: Setup, checkpoints: CheckpointCallback, run: RunDir) -> None:
    """Train from the newest checkpoint, if any. Raises TrainingStopped after a signal."""
    newest, trainer = checkpoints.writer.newest, setup.trainer
    seed_everything(checkpoints.config.seed)  # user code draws the same numbers as after Lightning's function
    report = checkpoints.metrics.progress.note
    if newest is None:
        load_initial_weights(checkpoints.config.init, setup.module, report)
    if adapters := find_adapters(setup.module):
        if newest:  # checkpoints do not hold the base
            load_initial_weights(checkpoints.config.init, setup.module, lambda line: None)
        report("Base:          {1}, sha256 {0:.12}".format(*adapters[1].identity))
    loaders = setup.loaders.arguments("train", "val")
    trainer.callbacks.append(check := TrainingCheck())
    add_callbacks(trainer, setup.module, checkpoints, setup.optimizer)
    add_loggers(trainer, run, checkpoints)
    path = newest.path / FILE if newest else None
    with explain_lightning_errors():
        trainer.fit(setup.module, **loaders, ckpt_path=path, weights_only=True)
    if not checkpoints.config.trainer.fast_dev_run and checkpoints not in trainer.callbacks:
        raise ConfigError(
            "user code has removed this project's callbacks from trainer.callbacks, so nothing was saved; append to the list instead."
        )
    if line := setup.course.early_end(trainer):
        checkpoints.metrics.progress.note(line)
    unfinished = setup.course.steps_done < setup.plan.total_steps
    if (check.batches or unfinished) and (note := check.check(trainer)):
        checkpoints.metrics.progress.note(note)


def save_end_weights(setup: Setup, checkpoints: CheckpointCallback) -> None:
    """Validate and save again if end hooks changed the weights. Raises TrainingStopped."""
    trainer, module, writer, metrics = setup.trainer, setup.module, checkpoints.writer, checkpoints.metrics
    late, saved = bool(changed_weights(module, checkpoints.weights.before_end)), dict[str, Any]()
    if late and writer.shards:
        metrics.progress.note(
            "on_train_end or on_fit_end changes the weights: with fsdp, the weights from before it are saved and tested."
        )
    elif late:
        writer.close()
        assert writer.newest
        saved = torch.load(writer.newest.path / FILE, map_location="cpu", weights_only=True)
        late = bool(changed_weights(module, saved["state_dict"]))
    if not trainer.strategy.broadcast(late and not writer.shards):
        return
    if setup.plan.val_batches:
        loaders = setup.loaders.arguments("val")
        named = {name.removeprefix("val_"): loader for name, loader in loaders.items()}
        with explain_lightning_errors():
            trainer.validate(module, **named, verbose=False)
    metrics.epoch_over(trainer, module)
    if trainer.is_global_zero:
        checkpoints.save_again(saved, copy_weights(module))


def test(setup: Setup, checkpoints: CheckpointCallback) -> None:
    """Test the weights of the best checkpoint, or the current ones. Raises TrainingStopped."""
    best = checkpoints.writer.best(setup.trainer)
    checkpoints.metrics.heartbeat.enter("test")
    with explain_lightning_errors():
        loaders = setup.loaders.arguments("test")
        setup.trainer.test(setup.module, **loaders, ckpt_path=best, weights_only=True, verbose=False)
