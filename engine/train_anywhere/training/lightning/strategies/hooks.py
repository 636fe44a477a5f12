"""What a run does in public hooks of a strategy, which the Trainer calls where no callback has a hook."""

import copy
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException
from torch import nn
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.errors import CheckpointError, ConfigError, SignalsAsErrors, listed, user_error
from train_anywhere.files.copy_files import refuse_compressed
from train_anywhere.training.lightning.checkpoint.contents import as_checkpoint_error
from train_anywhere.training.lightning.dropin.trainable import (
    KEY,
    check_trainable,
    restore_groups,
    set_flags,
    trainable_state,
)
from train_anywhere.training.lightning.dropin.user_data import TrainingLoaders, read_batches, unwrap, wrap
from train_anywhere.training.lightning.dropin.validated_weights import (
    ValidatedWeights,
    with_training_weights,
    with_validated_weights,
)
from train_anywhere.training.lightning.loaders import protect_workers
from train_anywhere.training.lightning.loop.steps import takes_iterator

RESTORED, RUNS = "_CheckpointConnector.resume_end", "run-stage"
"""Lightning's names of the barriers before and after it sets its signal handlers."""

LOADED = "_dataloader()"
"""End of Lightning's names of the barriers after the loaders of a stage were made, such as `train_dataloader()`."""

AFTER_SAVE = "Trainer.save_checkpoint"
"""Lightning's name of the barrier after a checkpoint, which is skipped: checkpoints are written in the background."""

ADD_EARLIER = "add them in setup, configure_model or on_fit_start."


class StrategyHooks(Strategy):
    """The first base of each strategy: signals, loaders and checkpoints.

    Signal handlers of the run stay: on TERM, Lightning's own would broadcast within the handler, for which a rank without the signal never
    waits. Evaluations measure each row once: Lightning's sampler repeats rows to give all ranks the same number. With `completes`, what a
    checkpoint has left out is taken from the new module (see `checkpoint.other_objects`).

    Attributes:
        loaded: the checkpoint that training resumes from, until it has started.
        training_loaders: where the training loaders of a user are.
        steps_read: whether a training step reads the batches itself.
        frozen: the names of parameters whose gradients are not averaged over the ranks.
        modes: whether each layer was in training mode before the validation that is running.
    """

    saves_on_all_ranks = False
    launcher: Any = None

    def __init__(self, *arguments: Any, completes: bool = False, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.completes, self.loaded = completes, dict[str, Any]()
        self._late, self._names = dict[str, Any](), set[str]()
        self._trainable: dict[str, Any] = {}
        self._checked, self._stage = -1, ""
        self._handlers: dict[int, Any] = {}
        self.modes, self.steps_read, self.frozen = dict[str, bool](), False, dict[nn.Parameter, str]()
        between = lambda: None if self.steps_read else self.call("between_steps")  # noqa: E731
        self.launcher = SimpleNamespace(launch=launch, is_interactive_compatible=True)
        self.training_loaders = TrainingLoaders(between)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Arguments of the samplers that share the rows, also among uneven nodes."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def process_dataloader(self, dataloader: Any) -> Any:
        """Return the loader that the Trainer reads on this rank. Lightning has put its sampler in."""
        dataloader, trainer = unwrap(dataloader), self.lightning_module.trainer
        protect_workers(dataloader, self.global_rank)
        loader = super().process_dataloader(dataloader)
        if trainer.predicting:
            return loader
        # not the trainer's stage: a hook of a validation may read `estimated_stepping_batches`, which opens the training loaders
        if self._stage == "train":
            return self.training_loaders.wrap(loader, trainer)
        if shares_rows(loader, self.world_size):
            loader = copy.copy(loader)  # a new one would need the arguments of the user's class
            vars(loader).update(batch_sampler=SharedBatches(loader, self.global_rank))
        return wrap(loader, lambda: self._open_evaluation(loader))

    def _open_evaluation(self, loader: Any) -> Iterator[Any]:
        """Return the batches of a loader. The first one of a validation within `fit` calls `before_validation` of callbacks."""
        trainer = self.lightning_module.trainer
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking and not self.modes:
            self.modes = {name: layer.training for name, layer in self.lightning_module.named_modules()}
            self.call("before_validation")
        return read_batches(iter(loader))

    def on_validation_end(self) -> None:
        """Forget the modes of the layers before the validation."""
        super().on_validation_end()
        self.modes = {}

    def call(self, name: str, *arguments: Any) -> None:
        """Call a method of the callbacks that have it."""
        trainer = self.lightning_module.trainer
        for callback in trainer.callbacks:
            if hasattr(callback, name):
                getattr(callback, name)(trainer, *arguments)

    def on_train_start(self) -> None:
        """Restore flags and random states, after all start hooks of callbacks and module."""
        super().on_train_start()
        self._load_late()
        self.steps_read = takes_iterator(self.lightning_module.trainer)
        self.training_loaders.training_started()
        self.call("training_started")
        set_flags(self.lightning_module, self._trainable)
        self._trainable, self._checked = {}, -1

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Check the trainable state after the start hooks of an epoch. Raises ConfigError if it changes within the epoch."""
        epoch = self.lightning_module.current_epoch
        if self._checked != epoch:
            self._checked = epoch
            check_trainable(self.lightning_module.trainer)
        if self.frozen and (names := [name for p, name in self.frozen.items() if p.requires_grad]):
            raise ConfigError(
                f"{listed(names, 3)} became trainable in epoch {epoch}, batch {batch_idx} (counted from 0), but gradients are averaged "
                "only for parameters that were trainable at the start of the epoch; set requires_grad in on_train_epoch_start."
            )

    def wait_for_ranks(self, name: str | None) -> None:
        """Wait for all ranks."""
        super().barrier(name)

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks. Lightning replaces the signal handlers between two barriers: none runs in between, and ours stay."""
        if name == RESTORED and (loaded := self.loaded):  # resume at its position
            trainer, self._trainable, self.loaded = self.lightning_module.trainer, loaded.get(KEY, {}), {}
            with as_checkpoint_error(trainer.ckpt_path):
                set_flags(self.lightning_module, self._trainable)
                self.call("resume_training", loaded)
        elif name == RUNS:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handlers)
        elif name and name.endswith(LOADED):
            self._stage = name.removesuffix(LOADED)
        if name != AFTER_SAVE:
            self.wait_for_ranks(name)
        if name == RESTORED and threading.current_thread() is threading.main_thread():
            known = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
            self._handlers = {number: handler for number, handler in known.items() if handler is not None}
            signal.pthread_sigmask(signal.SIG_BLOCK, self._handlers)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Add what is trainable and the validated weights, then save, or call `storage_options` if that is a function."""
        trainer = self.lightning_module.trainer
        checkpoint[KEY] = trainable_state(trainer)
        self._report_late(checkpoint["state_dict"])
        if "loops" in checkpoint:  # each rank has its own loaders, see `RankState`
            checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)
        found = (c.validated for c in trainer.callbacks if isinstance(c, ValidatedWeights))
        checkpoint = with_validated_weights(checkpoint, next(found, {}))
        if callable(storage_options):
            storage_options(checkpoint)
        elif self.is_global_zero or self.saves_on_all_ranks:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Return a checkpoint, which holds only tensors and plain values. Raises CheckpointError if it is damaged.

        Training continues from the training weights. A test gets no states of callbacks: one could replace the weights.
        """
        module = self.lightning_module
        with as_checkpoint_error(checkpoint_path):
            refuse_compressed(Path(checkpoint_path))
            state: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only=True)
            if module.trainer.state.fn == TrainerFn.FITTING:
                self.loaded = with_training_weights(state)
                parts = ["loops", "lr_schedulers", *["optimizer_states"] * self.lightning_restore_optimizer]
                if missing := [name for name in parts if not isinstance(state.get(name), dict | list)]:
                    raise ValueError(f"it has no {listed(missing)}.")
                if "fit_loop" not in state["loops"]:
                    raise ValueError("it has no fit_loop.")
                # Lightning refuses a run with fewer epochs than its checkpoint; `resume_training` sets the position
                most = module.trainer.max_epochs
                epochs = state["loops"]["fit_loop"]["epoch_progress"]["current"]
                if most and most > 0:
                    epochs.update({name: min(count, most) for name, count in epochs.items()})
            else:
                state.pop("callbacks", None)
            if self.completes:
                add_left_out(state, module)
        return state

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the weights. Raises CheckpointError for those of another model."""
        module = self.lightning_module
        with as_checkpoint_error(module.trainer.ckpt_path):
            if strict and not self.saves_on_all_ranks:
                found = module.load_state_dict(checkpoint["state_dict"], strict=False)
                if found is not None and not found.missing_keys:
                    self._late = {name: checkpoint["state_dict"][name] for name in found.unexpected_keys}
                    return
            super().load_model_state_dict(checkpoint, strict)

    def _load_late(self) -> None:
        """Load the weights that start hooks have added. Raises CheckpointError if some are still missing."""
        module, late, self._late = self.lightning_module, self._late, {}
        path = module.trainer.ckpt_path
        with as_checkpoint_error(path):
            if late and (left := module.load_state_dict(late, strict=False).unexpected_keys):
                raise CheckpointError(
                    f"{path} holds {', '.join(left)}, which this model does not have when training starts; {ADD_EARLIER}"
                )
        if not self.saves_on_all_ranks:
            self._names = {*module.state_dict()}

    def _report_late(self, names: Collection[str]) -> None:
        """Print the names of weights that a resumed run could not load. They are added in training."""
        added = [name for name in names if name not in self._names] if self._names else []
        if added and self.is_global_zero:
            self.training_loaders.report(
                f"{', '.join(added)}: added after training had started, so a resumed run can't load them; {ADD_EARLIER}"
            )
            self._names.update(added)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the state of the optimizers. Raises CheckpointError if it does not fit."""
        with as_checkpoint_error(self.lightning_module.trainer.ckpt_path):
            set_flags(self.lightning_module, checkpoint.get(KEY, {}))
            restore_groups(self.lightning_module, self.optimizers, checkpoint.get(KEY, {}))
            groups = [[*optimizer.param_groups] for optimizer in self.optimizers]
            super().load_optimizer_state_dict(checkpoint)
        for optimizer, before in zip(self.optimizers, groups, strict=True):
            # an optimizer around another one shares its groups, and torch replaces them
            for old, new in zip(before, optimizer.param_groups, strict=False):
                old.clear()
                old.update(new)
            optimizer.param_groups[: len(before)] = before


def shares_rows(loader: Any, ranks: int) -> bool:
    """Return whether Lightning's or torch's sampler gives each of these ranks a part of the rows."""
    if not isinstance(loader, DataLoader) or type(loader.batch_sampler) is not BatchSampler:
        return False
    sampler: Any = loader.sampler
    known = type(sampler) in (DistributedSampler, DistributedSamplerWrapper)
    return known and sampler.num_replicas == ranks > 1


def launch(function: Callable[..., Any], *arguments: Any, trainer: pl.Trainer, **named: Any) -> Any:
    """Call a function of the Trainer in this process. Raises RuntimeError for an exception of user code that Lightning takes for an end.

    At a KeyboardInterrupt it would exit with code 1, and at the exit of its tuner return as if the run were complete.
    """
    try:
        with SignalsAsErrors():
            return function(*arguments, **named)
    except Exception as error:
        flow = type(error).__module__ == SIGTERMException.__module__
        if flow and not isinstance(error, MisconfigurationException | SIGTERMException):
            raise user_error(error) from error
        raise


class SharedBatches(BatchSampler):
    """One rank's part of the batches of a distributed sampler: each row once, as many on every rank."""

    def __init__(self, loader: DataLoader[Any], rank: int) -> None:
        whole: Any = copy.copy(loader.sampler)
        size, ranks = loader.batch_size or 1, whole.num_replicas
        whole.num_replicas, whole.rank = 1, 0
        whole.num_samples = whole.total_size = len(whole.dataset)
        super().__init__(whole, size, loader.drop_last)
        self.order = BatchOrder(size * ranks, 0, rank, ranks, drop_last=loader.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        rows = list(self.sampler)
        for batch in range(self.order.batches(len(rows))):
            yield [rows[n] for n in self.order.rows(len(rows), 0, batch)]

    def __len__(self) -> int:
        return self.order.batches(len(self.sampler))  # type: ignore[arg-type]


def add_left_out(checkpoint: dict[str, Any], module: pl.LightningModule) -> None:
    """Add the entries of on_save_checkpoint that `checkpoint.other_objects` left out."""
    fresh = {k: dict(v) if isinstance(v, dict) else v for k, v in checkpoint.items()}
    module.on_save_checkpoint(fresh)
    checkpoint |= {k: v for k, v in fresh.items() if k not in checkpoint}
