"""Train one rank with Lightning, from the configuration to the outcome: data, model, strategy, resume, fit, test."""

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import lightning.pytorch as pl
import torch
from torch import distributed, nn

from train_anywhere.config.instantiate import locate
from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import Splits
from train_anywhere.data.open_data import open_splits
from train_anywhere.distributed.layout import running_strategy
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import CheckpointError, ConfigError, chain
from train_anywhere.features import Features
from train_anywhere.features.feature import Observers, Rank
from train_anywhere.monitor.heartbeat import own as heartbeat
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.rank_reports import report_weights
from train_anywhere.runs.recorder import RunRecorder
from train_anywhere.tasks import Task
from train_anywhere.training.lightning.attach import add_callbacks, add_loggers, attach
from train_anywhere.training.lightning.batches import OwnOrder
from train_anywhere.training.lightning.checkpoint.random_state import seed_everything
from train_anywhere.training.lightning.checkpoint.state import FILE, CheckpointCallback, Stopped
from train_anywhere.training.lightning.dropin.loggers import Tracks
from train_anywhere.training.lightning.dropin.measured import ENDS, changed, user_hooks, weights_of
from train_anywhere.training.lightning.dropin.model import lightning_refusals, make_task, without_evaluation
from train_anywhere.training.lightning.hardware import suit
from train_anywhere.training.lightning.initial import begin_with
from train_anywhere.training.lightning.loop.agreement import refuse_different_weights
from train_anywhere.training.lightning.loop.callbacks import ModuleMetrics, TaskMetrics
from train_anywhere.training.lightning.module import TaskModule
from train_anywhere.training.lightning.parts import Parts, open_parts, takes_batch_size
from train_anywhere.training.lightning.strategies.choose import make_strategy
from train_anywhere.training.lightning.strategies.ddp import OneDevicePerRank
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy
from train_anywhere.training.lightning.strategies.rank_device import pick_device
from train_anywhere.training.lightning.trainer import Trainer, make_trainer
from train_anywhere.training.lightning.training_check import TrainingCheck
from train_anywhere.training.native_network import build_network
from train_anywhere.training.plan import Plan, make_plan, validation_notes
from train_anywhere.training.reporting.peak import peak
from train_anywhere.training.reporting.progress import Progress
from train_anywhere.training.stop import Stop


def train(
    config: Config, run: RunDir, topology: Topology, stop: Stop, recorder: RunRecorder | None = None
) -> Outcome:
    """Train in the run folder, from its newest checkpoint if it has one, and test the best weights. Every rank calls it.

    Args:
        topology: which rank this process is.
        stop: its flag ends the training after the current step, with a checkpoint.
        recorder: of rank 0.

    Raises:
        ConfigError, DataError, CheckpointError: what can't be trained, before training begins or at the damaged sample.
    """
    try:
        outcome = train_and_test(config, run, topology, stop, recorder)
    except BaseException as error:
        if recorder and recorder.steps_done:
            steps = recorder.steps_done()
            recorder.steps_done = lambda: steps
        forget_frames(error)
        # NCCL's group would wait for ranks that have died; it has no such threads
        if isinstance(error, KeyboardInterrupt):
            raise
        if distributed.is_initialized() and distributed.get_backend() == "gloo":
            end_process_group()
        raise
    if recorder:
        recorder.steps_done = None  # it refers to the Trainer, and so to the process group
    end_process_group()
    return outcome


@dataclass(frozen=True)
class Made:
    """All that is made of the configuration before training.

    Attributes:
        devices: that share the global batch.
    """

    trainer: Trainer
    module: pl.LightningModule
    plan: Plan
    parts: Parts
    devices: int


def train_and_test(
    config: Config, run: RunDir, topology: Topology, stop: Stop, recorder: RunRecorder | None
) -> Outcome:
    """`train`, with the process group still there."""
    made = make(config, topology)
    trainer, module, plan = made.trainer, made.module, made.plan
    kind = config.monitor.progress if trainer.is_global_zero else "none"
    task = module.task if isinstance(module, TaskModule) else None
    unit, counted = (task.unit, task.unit in task.sums) if task else ("samples", False)
    live = run.path if trainer.is_global_zero and not config.trainer.fast_dev_run else None
    with Progress(kind, plan, made.devices, unit, counted, least_seconds(made, config), live) as progress:
        common = (config, plan, stop, progress, trainer.is_global_zero)
        metrics = TaskMetrics(task, *common) if task else ModuleMetrics(*common)
        metrics.observers = observers_of(made, config, run)
        checkpoints = attach(trainer, run, metrics, recorder)
        writer = checkpoints.writer
        progress.newest = lambda: writer.checkpointer.newest if writer.checkpointer else None
        with writer.checkpointer or nullcontext():
            state: Literal["completed", "preempted", "failed"] = "failed"
            try:
                state = fit_and_test(made, checkpoints, run, topology)
            except Exception:
                with suppress(CheckpointError):  # the first error counts
                    writer.publish_shards()
                raise
            finally:
                for logger in (known for known in trainer.loggers if isinstance(known, Tracks)):
                    logger.tracked.finalize(state)
            heartbeat.enter("end")
            writer.close()
    return Outcome(
        state=state,
        epoch=writer.newest.epoch if writer.newest else trainer.current_epoch,
        step=trainer.steps_done,
        metrics=metrics.metrics,
        checkpoint=str(writer.newest.path) if writer.newest else None,
        rate=progress.throughput.mean(),
        unit=unit,
    )


def observers_of(made: Made, config: Config, run: RunDir) -> Observers:
    """Return what features do in the loop of this rank."""
    trainer, module, part = made.trainer, made.module, made.parts.train
    native = isinstance(module, TaskModule)
    if native:
        module.train_sums.watched = Features.of(config).counts

    def total(numbers: list[float]) -> list[float]:
        own = torch.tensor(numbers, dtype=torch.float64, device=module.device)
        return cast(list[float], trainer.strategy.reduce(own, reduce_op="sum").tolist())

    rank = Rank(
        run=run,
        native=native,
        first=trainer.global_rank,
        devices=trainer.world_size,
        accumulate=made.plan.accumulate,
        total=total,
        keep=part.batches.keep if isinstance(part, OwnOrder) else None,
    )
    return Observers(Features.of(config).observers(rank))


def least_seconds(made: Made, config: Config) -> float | None:
    """That this device needs for a token of a network that says its `flops_per_token`; None where its peak is not known."""
    module, device = made.module, made.trainer.strategy.root_device
    if not isinstance(module, TaskModule) or module.task.unit != "tokens" or device.type != "cuda":
        return None
    flops = getattr(module.network, "flops_per_token", None)
    if not isinstance(flops, float):
        return None
    most = peak(torch.cuda.get_device_name(device), config.trainer.precision, config.trainer.tf32)
    return flops / most if most else None


def forget_frames(error: BaseException) -> None:
    """Drop what the functions held that an error and its causes went through: the Trainer among it. Their lines stay known."""
    for one in chain(error):
        traceback.clear_frames(one.__traceback__)


def end_process_group() -> None:
    """Destroy the process group and its threads, when nothing else refers to it.

    A thread of Gloo drops the tensors that it has sent some time later, and needs Python for that. If Python ends
    meanwhile, the process aborts with "terminate called without an active exception", see
    https://github.com/pytorch/pytorch/issues/190489. The group's last reference waits for its threads.
    """
    if distributed.is_initialized():
        distributed.destroy_process_group()
        gc.collect()  # the Trainer and all that belongs to it


def make(config: Config, topology: Topology) -> Made:
    """Task, strategy, Trainer, data and network, in this order: what is cheap to refuse comes first."""
    seed_everything(config.seed)
    name, devices = running_strategy(config, topology)
    device = pick_device(config, topology)
    strategy = make_strategy(name, config, topology, device, devices)
    build = strategy.build if isinstance(strategy, FullyShardedStrategy) else plainly
    task = build(lambda: make_task(config))
    if isinstance(strategy, OneDevicePerRank) and isinstance(task, pl.LightningModule):
        strategy.expect(task)
    trainer = make_trainer(config, topology, device, strategy)
    heartbeat.at("meeting")
    strategy.setup_environment()  # from here on the ranks know each other
    heartbeat.at("preparing")

    whole = takes_batch_size(locate(config.data.target["lightning"], "data._target_"))
    batch_size = config.data.batch_size // (1 if whole else topology.world_size)
    splits = open_splits(
        config.data, "lightning", config.seed, Features.of(config).staging, batch_size=batch_size
    )
    tell = teller(config, trainer)
    parts = open_parts(config, splits, topology, task, trainer, tell)
    plan = make_plan(config, len(parts.train), len(parts.val or ()), len(parts.test or ()), devices)
    for note in [*splits.notes, *validation_notes(config, plan)]:
        tell(note)
    if isinstance(parts.train, OwnOrder):  # a DataLoader of the data has a batch size of its own
        plan = replace(plan, batch_per_rank=parts.train.batches.size.batch_size // devices)
    if isinstance(task, Task):
        module: pl.LightningModule = make_module(config, task, plan, devices, splits, build)
    else:
        module, plan = task, without_evaluation(task, plan)
    suit(module, config, strategy)
    trainer.follow(plan)
    return Made(trainer, module, plan, parts, devices)


def teller(config: Config, trainer: Trainer) -> Callable[[str], None]:
    """Prints a line, on rank 0 of a run that shows its progress."""
    silent = config.monitor.progress == "none" or not trainer.is_global_zero
    return (lambda line: None) if silent else partial(print, flush=True)


def plainly(make: Callable[[], Any]) -> Any:
    """What a function makes."""
    return make()


def make_module(
    config: Config, task: Task, plan: Plan, devices: int, splits: Splits, build: Callable[..., Any]
) -> TaskModule:
    """Network, loss and optimizer of a native task, as Lightning's module; the strategy makes all ranks' weights the same.

    Args:
        build: calls what makes the network, perhaps without memory for its weights.
    """
    network = build(lambda: build_network(config, splits.facts))
    if not isinstance(network, nn.Module):
        dotted = config.model.target["lightning"]
        raise ConfigError(
            f"model._target_={dotted} made a {type(network).__name__}, which is no torch.nn.Module."
        )
    return TaskModule(task, network, config, plan, devices)


def fit_and_test(
    made: Made, checkpoints: CheckpointCallback, run: RunDir, topology: Topology
) -> Literal["completed", "preempted"]:
    """Train to the end or to a signal, then test."""
    config, module = checkpoints.config, made.module
    try:
        fit(made, checkpoints, run)
        checkpoints.metrics.observers.at_end()
        if user_hooks(made.trainer, *ENDS) and not config.trainer.fast_dev_run:
            keep_end(made, checkpoints)
        heartbeat.enter("checkpoint")  # the last one is published, and weights are compared
        if not checkpoints.writer.shards:
            if config.monitor.ranks:
                weights = (p.detach().cpu().numpy().tobytes() for p in module.parameters())
                report_weights(run, topology, weights)
            refuse_different_weights(module, made.trainer.strategy)
        if made.plan.test_batches:
            test(made, checkpoints)
    except Stopped:
        return "preempted"
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):  # what Lightning makes of the second Ctrl-C
            raise end.__context__ from None
        raise
    return "completed"


def fit(made: Made, checkpoints: CheckpointCallback, run: RunDir) -> None:
    """Train from the newest checkpoint, or from the start. Raises Stopped at a signal, after a checkpoint."""
    parts, newest = made.parts, checkpoints.writer.newest
    if newest is None:
        later = getattr(made.trainer.strategy, "later", None)
        begin_with(checkpoints.config, made.module, checkpoints.metrics.progress.note, later)
    training = parts.train.loader(checkpoints.start)
    made.trainer.callbacks.append(check := TrainingCheck())
    add_callbacks(made.trainer, made.module, checkpoints, training, made.devices)
    add_loggers(made.trainer, run, checkpoints)
    path = newest.path / FILE if newest else None
    validation = parts.val.loader() if parts.val else []
    with lightning_refusals(), giving(parts, train=training, val=validation) as loaders:
        made.trainer.fit(made.module, **loaders, ckpt_path=path, weights_only=True)
    unfinished = made.trainer.steps_done < made.plan.total_steps
    if (check.batches or unfinished) and (note := check.judge(made.trainer)):
        checkpoints.metrics.progress.note(note)


def keep_end(made: Made, checkpoints: CheckpointCallback) -> None:
    """Validate and save once more if hooks of the training's end have changed the weights after the last checkpoint. Raises Stopped."""
    trainer, module, writer, metrics = made.trainer, made.module, checkpoints.writer, checkpoints.metrics
    late, saved = bool(changed(module, trainer.one_model.before_end)), dict[str, Any]()
    if late and writer.shards:
        metrics.progress.note(
            "on_train_end or on_fit_end changes weights: fsdp keeps and tests those of before."
        )
    elif late:
        writer.close()
        assert writer.newest
        saved = torch.load(writer.newest.path / FILE, map_location="cpu", weights_only=True)
        late = bool(changed(module, saved["state_dict"]))
    if not trainer.strategy.broadcast(late and not writer.shards):
        return
    if made.plan.val_batches:
        assert made.parts.val
        with lightning_refusals(), giving(made.parts, val=made.parts.val.loader()) as loaders:
            named = {name.removeprefix("val_"): loader for name, loader in loaders.items()}
            trainer.validate(module, **named, verbose=False)
    metrics.epoch_over(trainer, module)
    if trainer.is_global_zero:
        checkpoints.save_again(saved, weights_of(module))


def test(made: Made, checkpoints: CheckpointCallback) -> None:
    """Measure the metrics of the test with the best checkpoint's weights, or the present ones. Raises Stopped."""
    assert made.parts.test
    best = checkpoints.writer.best(made.trainer)
    heartbeat.enter("test")
    with lightning_refusals(), giving(made.parts, test=made.parts.test.loader()) as loaders:
        made.trainer.test(made.module, **loaders, ckpt_path=best, weights_only=True, verbose=False)


LOADERS = {"train": "train_dataloaders", "val": "val_dataloaders", "test": "dataloaders"}
"""What the Trainer calls them."""


@contextmanager
def giving(parts: Parts, **loaders: Any) -> Iterator[dict[str, Any]]:
    """The Trainer's arguments for loaders; a LightningDataModule is told to give them, so that its hooks are called."""
    if parts.datamodule is None:
        yield {LOADERS[name]: loader for name, loader in loaders.items()}
        return
    for name, loader in loaders.items():
        setattr(parts.datamodule, f"{name}_dataloader", partial(_itself, loader))
    yield {"datamodule": parts.datamodule}


def _itself(loader: Any) -> Any:
    return loader
