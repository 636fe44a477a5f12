"""Train with Lightning: data, model, Trainer, resume, fit, test."""

import gc
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from torch import distributed

from src.checkpoints.event_files import EventFileSync
from src.checkpoints.info import SavedCheckpoint
from src.checkpoints.interval import Interval
from src.checkpoints.recovery import open_checkpointer
from src.config.schema import Config
from src.data.base import Splits
from src.data.sets import open_splits
from src.distributed.discover import Topology
from src.distributed.fingerprint import fingerprint
from src.errors import CheckpointError
from src.models.lightning import build_model
from src.runs.attempts import Outcome, record_first_step
from src.runs.folder import RunDir
from src.training.lightning.callbacks import EarlyStop, Reporter
from src.training.lightning.checkpoint import FILE, METADATA, Saver, Stopped
from src.training.lightning.loaders import make_loader
from src.training.lightning.module import Classifier
from src.training.lightning.random_state import RandomState, seed_everything
from src.training.lightning.strategies.device import pick_device
from src.training.lightning.strategies.make import device_count, strategy_name
from src.training.lightning.tensorboard import TensorBoard
from src.training.lightning.trainer import Trainer, make_trainer
from src.training.metrics_csv import CsvLog
from src.training.plan import Plan, make_plan
from src.training.progress import Progress
from src.training.stop import Stop

if TYPE_CHECKING:
    from src.training.lightning.shards import Shards


def train(config: Config, run: RunDir, topology: Topology, stop: Stop) -> Outcome:
    """Train in the run folder, from its newest checkpoint where it has one, and test the best weights.

    Args:
        topology: which rank this process is.
        stop: its flag ends the training after the step it is in, with a checkpoint.

    Raises:
        ConfigError, DataError: what can't be trained, before training begins or at the damaged sample.
    """
    outcome = train_and_test(config, run, topology, stop)
    run.steps_done = None  # it refers to the Trainer, and so to the process group
    end_process_group()
    return outcome


def train_and_test(config: Config, run: RunDir, topology: Topology, stop: Stop) -> Outcome:
    """`train`, but the process group is still there."""
    seed_everything(config.seed)
    splits = open_splits(config.data, config.seed)
    devices = device_count(config, topology)
    plan = make_plan(config, len(splits.train), len(splits.val), len(splits.test), devices)
    network = build_model(config.model, splits.train.shape, splits.train.classes)
    module = Classifier(network, config, plan, devices)
    trainer = make_trainer(config, plan, topology, pick_device(config, topology))
    trainer.strategy.setup_environment()  # from here on the ranks know each other

    kind = config.monitor.progress if trainer.is_global_zero else "none"
    with Progress(kind, plan, devices) as progress:
        reporter = Reporter(config, plan, stop, progress, speaks=trainer.is_global_zero)
        saver = attach(trainer, config, plan, run, reporter, strategy_name(config, topology) == "fsdp")
        with saver.publisher or nullcontext():
            try:
                state = fit_and_test(trainer, module, saver, config, splits, topology)
            except Exception:
                with suppress(CheckpointError):  # the first error counts
                    saver.publish_shards()
                raise
            saver.close()
    return Outcome(
        state=state,
        epoch=saver.newest.epoch if saver.newest else trainer.current_epoch,
        step=trainer.global_step,
        metrics=reporter.metrics,
        checkpoint=str(saver.newest.path) if saver.newest else None,
    )


def end_process_group() -> None:
    """Destroy it and its threads, when nothing else refers to it.

    A thread of Gloo drops the tensors that it has sent some time after the training went on, and needs Python
    for that: where Python is ending meanwhile, the process aborts with "terminate called without an active
    exception", see https://github.com/pytorch/pytorch/issues/190489. The group's last reference waits for them.
    """
    if distributed.is_initialized():
        distributed.destroy_process_group()
        gc.collect()  # the Trainer and all that belongs to it


def attach(
    trainer: Trainer, config: Config, plan: Plan, run: RunDir, reporter: Reporter, sharded: bool
) -> Saver:
    """Give the Trainer its callbacks and logs, continued at the newest good checkpoint of the run.

    Args:
        sharded: each rank writes a part of the checkpoint, straight into the run folder that all of them see.
    """
    keep = not config.trainer.fast_dev_run
    writes = keep and trainer.is_global_zero
    rule = replace(config.checkpoint, local=None) if sharded else config.checkpoint
    publisher = open_checkpointer(rule, run) if writes else None
    saved = trainer.strategy.broadcast(publisher.store.newest_good() if publisher else None)
    if writes:
        record_first_step(run, saved.step if saved else 0)
        run.steps_done = lambda: trainer.global_step
    if saved:
        refuse_other_framework(saved)
        refuse_other_layout(saved, sharded)
        reporter.progress.note(f"going on from step {saved.step} of {plan.total_steps}")
    interval = Interval(config.checkpoint, trainer.world_size)
    reporter.interval = interval if writes else None
    saver = Saver(config, plan, publisher, reporter, saved, interval, open_shards(run) if sharded else None)
    trainer.callbacks += [
        RandomState(config.seed, reporter.progress.note),
        reporter,
        EarlyStop(config.trainer.early_stopping, reporter),
    ]
    if keep:
        trainer.callbacks.append(saver)  # last: it saves what the others have decided
        step = saved.step if saved else 0
        if config.monitor.tensorboard:
            mirror = publisher.events if publisher else EventFileSync(None, run.tensorboard)
            trainer.logger = TensorBoard(mirror, step)
        if config.monitor.csv and trainer.is_global_zero:
            reporter.csv = CsvLog(run.metrics_csv)
            reporter.csv.resume(step)
    return saver


def open_shards(run: RunDir) -> "Shards":
    """What writes this rank's shards; all ranks call it."""
    from src.training.lightning.shards import Shards

    return Shards(run.checkpoints)


def refuse_other_framework(saved: SavedCheckpoint) -> None:
    """Raise CheckpointError for a checkpoint that Lightning can't read."""
    if saved.framework != "lightning":
        raise CheckpointError(
            f"{saved.path} was written with framework={saved.framework}; go on with that, or start a new run."
        )


def refuse_other_layout(saved: SavedCheckpoint, sharded: bool) -> None:
    """Raise CheckpointError where the checkpoint is split over ranks and the strategy is not, or the reverse."""
    if (saved.path / METADATA).exists() != sharded:
        written, fix = ("whole", "ddp") if sharded else ("in shards", "fsdp")
        raise CheckpointError(f"{saved.path} was written {written}; go on with strategy={fix}.")


def fit_and_test(
    trainer: Trainer, module: Classifier, saver: Saver, config: Config, splits: Splits, topology: Topology
) -> Literal["completed", "preempted"]:
    """Train from the checkpoint of `saver`, then test the weights of the best one."""
    newest, plan = saver.newest.path / FILE if saver.newest else None, saver.plan
    training = make_loader(config, splits.train, topology, train=True, start=saver.start)
    validation = make_loader(config, splits.val, topology)
    try:
        trainer.fit(module, training, validation, ckpt_path=newest, weights_only=True)
        if config.monitor.ranks and not saver.shards:
            weights = (p.detach().cpu().numpy().tobytes() for p in module.parameters())
            print(fingerprint(topology, weights), end="", flush=True)
        if plan.test_batches:
            loader, best = make_loader(config, splits.test, topology), saver.best(trainer)
            trainer.test(module, loader, ckpt_path=best, weights_only=True, verbose=False)
    except Stopped:
        return "preempted"
    except SystemExit as end:  # what Lightning makes of the second Ctrl-C
        raise end.__context__ or end from None
    return "completed"
