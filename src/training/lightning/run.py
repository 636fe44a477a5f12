"""Train one rank with Lightning, from the configuration to the outcome: data, model, strategy, resume, fit, test."""

import gc
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Literal

from torch import distributed

from src.checkpoints.event_files import EventFileSync
from src.checkpoints.info import SavedCheckpoint
from src.checkpoints.interval import Interval
from src.checkpoints.recovery import open_checkpointer
from src.config.schema import Config
from src.data.base import ImageSet, Splits
from src.data.sets import open_splits
from src.distributed.layout import running_strategy
from src.distributed.topology import Topology
from src.errors import CheckpointError
from src.models.lightning import build_model
from src.runs.attempts import Outcome, record_first_step
from src.runs.folder import RunDir
from src.runs.ranks import report_weights
from src.training.lightning.callbacks import EarlyStop, MetricsCallback
from src.training.lightning.checkpoint import FILE, METADATA, CheckpointCallback, StateWriter, Stopped
from src.training.lightning.loaders import evaluation_data, training_data
from src.training.lightning.module import Classifier
from src.training.lightning.random_state import RandomState, seed_everything
from src.training.lightning.shards import Shards
from src.training.lightning.strategies.device import pick_device
from src.training.lightning.strategies.make import make_strategy
from src.training.lightning.tensorboard import TensorBoard
from src.training.lightning.trainer import Trainer, make_trainer
from src.training.metrics_csv import CsvLog
from src.training.plan import Plan, make_plan
from src.training.progress import Progress
from src.training.resuming import refuse_other_framework, resuming_at
from src.training.stop import Stop


def train(config: Config, run: RunDir, topology: Topology, stop: Stop) -> Outcome:
    """Train in the run folder, from its newest checkpoint if it has one, and test the best weights. Every rank calls it.

    Args:
        topology: which rank this process is.
        stop: its flag ends the training after the current step, with a checkpoint.

    Raises:
        ConfigError, DataError, CheckpointError: what can't be trained, before training begins or at the damaged sample.
    """
    outcome = train_and_test(config, run, topology, stop)
    run.steps_done = None  # it refers to the Trainer, and so to the process group
    end_process_group()
    return outcome


def train_and_test(config: Config, run: RunDir, topology: Topology, stop: Stop) -> Outcome:
    """`train`, with the process group still there."""
    seed_everything(config.seed)
    splits = open_splits(config.data, config.seed)
    name, devices = running_strategy(config, topology)
    plan = make_plan(config, len(splits.train), len(splits.val), len(splits.test), devices)
    module = make_model(config, plan, devices, splits)
    device = pick_device(config, topology)
    strategy = make_strategy(name, config, topology, device, devices)
    trainer = make_trainer(config, plan, topology, device, strategy)
    strategy.setup_environment()  # from here on the ranks know each other

    kind = config.monitor.progress if trainer.is_global_zero else "none"
    with Progress(kind, plan, devices) as progress:
        metrics = MetricsCallback(config, plan, stop, progress, prints=trainer.is_global_zero)
        checkpoints = attach(trainer, config, plan, run, metrics, sharded=name == "fsdp")
        writer = checkpoints.writer
        with writer.checkpointer or nullcontext():
            try:
                state = fit_and_test(trainer, module, checkpoints, splits, run, topology)
            except Exception:
                with suppress(CheckpointError):  # the first error counts
                    writer.publish_shards()
                raise
            writer.close()
    return Outcome(
        state=state,
        epoch=writer.newest.epoch if writer.newest else trainer.current_epoch,
        step=trainer.global_step,
        metrics=metrics.metrics,
        checkpoint=str(writer.newest.path) if writer.newest else None,
    )


def end_process_group() -> None:
    """Destroy the process group and its threads, when nothing else refers to it.

    A thread of Gloo drops the tensors that it has sent some time later, and needs Python for that. If Python ends
    meanwhile, the process aborts with "terminate called without an active exception", see
    https://github.com/pytorch/pytorch/issues/190489. The group's last reference waits for its threads.
    """
    if distributed.is_initialized():
        distributed.destroy_process_group()
        gc.collect()  # the Trainer and all that belongs to it


def make_model(config: Config, plan: Plan, devices: int, splits: Splits) -> Classifier:
    """Model, loss and optimizer, as Lightning's module; the strategy makes all ranks' weights the same."""
    network = build_model(config.model, splits.train.shape, splits.train.classes)
    return Classifier(network, config, plan, devices)


def attach(
    trainer: Trainer, config: Config, plan: Plan, run: RunDir, metrics: MetricsCallback, sharded: bool
) -> CheckpointCallback:
    """Give the Trainer its callbacks and loggers, resumed from the newest good checkpoint of the run.

    Args:
        sharded: each rank writes a part of the checkpoint, straight into the run folder that all of them see.
    """
    keep = not config.trainer.fast_dev_run
    writes = keep and trainer.is_global_zero
    rule = replace(config.checkpoint, local=None) if sharded else config.checkpoint
    checkpointer = open_checkpointer(rule, run) if writes else None
    saved = trainer.strategy.broadcast(checkpointer.store.newest_good() if checkpointer else None)
    if writes:
        record_first_step(run, saved.step if saved else 0)
        run.steps_done = lambda: trainer.global_step
    if saved:
        refuse_other_framework(saved, "lightning")
        refuse_other_layout(saved, sharded)
        metrics.progress.note(resuming_at(saved.step, plan.total_steps))
    interval = Interval(config.checkpoint, trainer.world_size)
    metrics.interval = interval if writes else None
    writer = StateWriter(checkpointer, Shards(run.checkpoints) if sharded else None, saved)
    trainer.strategy.checkpoint_io = writer
    checkpoints = CheckpointCallback(config, plan, writer, metrics, saved, interval)
    trainer.callbacks += [
        RandomState(config.seed, metrics.progress.note),
        metrics,
        EarlyStop(config.trainer.early_stopping, metrics),
    ]
    if keep:
        trainer.callbacks.append(checkpoints)  # last: it saves what the others have decided
        step = saved.step if saved else 0
        if config.monitor.tensorboard:
            events = checkpointer.events if checkpointer else EventFileSync(None, run.tensorboard)
            trainer.logger = TensorBoard(events, step)
        if config.monitor.csv and trainer.is_global_zero:
            metrics.csv = CsvLog(run.metrics_csv)
            metrics.csv.resume(step)
    return checkpoints


def refuse_other_layout(saved: SavedCheckpoint, sharded: bool) -> None:
    """Raise CheckpointError for a whole checkpoint with a sharded strategy, or the reverse."""
    if (saved.path / METADATA).exists() != sharded:
        written, fix = ("whole", "ddp") if sharded else ("in shards", "fsdp")
        raise CheckpointError(f"{saved.path} was written {written}; resume with strategy={fix}.")


def fit_and_test(
    trainer: Trainer,
    module: Classifier,
    checkpoints: CheckpointCallback,
    splits: Splits,
    run: RunDir,
    topology: Topology,
) -> Literal["completed", "preempted"]:
    """Train to the end or to a signal, then test."""
    config, plan = checkpoints.config, checkpoints.plan
    try:
        fit(trainer, module, checkpoints, splits, topology)
        if config.monitor.ranks and not checkpoints.writer.shards:
            weights = (p.detach().cpu().numpy().tobytes() for p in module.parameters())
            report_weights(run, topology, weights)
        if plan.test_batches:
            test(trainer, module, checkpoints, splits.test, topology)
    except Stopped:
        return "preempted"
    except SystemExit as end:  # what Lightning makes of the second Ctrl-C
        raise end.__context__ or end from None
    return "completed"


def fit(
    trainer: Trainer, module: Classifier, checkpoints: CheckpointCallback, splits: Splits, topology: Topology
) -> None:
    """Train from the newest checkpoint, or from the start. Raises Stopped at a signal, after a checkpoint."""
    config, newest = checkpoints.config, checkpoints.writer.newest
    training = training_data(config, splits.train, topology, checkpoints.start)
    validation = evaluation_data(config, splits.val, topology)
    path = newest.path / FILE if newest else None
    trainer.fit(module, training, validation, ckpt_path=path, weights_only=True)


def test(
    trainer: Trainer,
    module: Classifier,
    checkpoints: CheckpointCallback,
    split: ImageSet,
    topology: Topology,
) -> None:
    """Measure the metrics of the test with the best checkpoint's weights, or the present ones. Raises Stopped."""
    loader, best = evaluation_data(checkpoints.config, split, topology), checkpoints.writer.best(trainer)
    trainer.test(module, loader, ckpt_path=best, weights_only=True, verbose=False)
