"""Resume and stop a training of an unmodified `lightning.pytorch.Trainer`, from outside.

    driver = Driver(folder)
    trainer = pl.Trainer(strategy=Ddp(driver), callbacks=[First(driver), *users, driver], plugins=[LocalFirst(near, far)], ...)
    share_monitored(module, [monitor])
    trainer.fit(module, ckpt_path=driver.last_model_path or None, weights_only=False)

The parts are a `Checkpoint` callback, a CheckpointIO and a wrapper of training loaders, which the strategy's public hook
`process_dataloader` puts in. A resume point lies between two steps: right before the Trainer's fetcher reads a batch. All hooks of the
step before, its validation and the schedules are done there, also at the end of an epoch.
Two private names of Lightning are used (see `logged_metrics` and `as_saved_after_batch`); without one of them a feature is off.
"""

import copy
import hashlib
import math
import os
import pickle
import queue
import random
import signal
import threading
import time
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning_utilities.core.apply_func import apply_to_collection
from torch import distributed, nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler
from torchmetrics import Metric

PLAIN = (int, float, bool, str, bytes, type(None))
FRAMEWORK = {*vars(pl.LightningModule()), *vars(pl.Callback()), "log", "log_dict"}


class TrainingStopped(Exception):
    """Raised between two steps, after the checkpoint, to leave the Trainer."""


# ---------------------------------------------------------------------------------------------------------------- state
def random_states():
    """Return the random states of this process."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
        "python": random.getstate(),
        "cuda": cuda,
    }


def set_random_states(states):
    """Set the random states of `random_states`."""
    torch.set_rng_state(states["torch"])
    np.random.set_state(states["numpy"])
    random.setstate(states["python"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])


def is_plain(value):
    """Return whether a value consists of numbers, strings, arrays, lists and dictionaries only."""
    if isinstance(value, (list, tuple, set)) and type(value) in (list, tuple, set):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    return type(value) in PLAIN or type(value) in (torch.Tensor, np.ndarray)


def user_state(owner, start=None):
    """Return the attributes of an object that no `state_dict` of Lightning holds: plain ones, and those with a `state_dict`.

    With the state at the start, only what has changed since: arguments of the object may be others in a resumed run.
    """
    state = {}
    for name, value in vars(owner).items():
        if name in FRAMEWORK or name.startswith("_") or isinstance(value, (nn.Module, pl.Callback)):
            continue
        if isinstance(value, torch.Generator):
            state[name] = ("generator", value.get_state())
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            state[name] = ("state", copy.deepcopy(value.state_dict()))
        elif is_plain(value):
            state[name] = ("plain", copy.deepcopy(value))
    if start is None:
        return state
    return {name: one for name, one in state.items() if name not in start or pickle.dumps(one) != start[name]}


def set_user_state(owner, state):
    """Set the attributes of `user_state`."""
    for name, (kind, value) in state.items():
        if kind == "plain":
            setattr(owner, name, copy.deepcopy(value))
        elif kind == "generator":
            getattr(owner, name).set_state(value)
        else:
            getattr(owner, name).load_state_dict(value)


def metric_states(module):
    """Return the values of the module's torchmetrics, which its `state_dict` leaves out."""
    found = [(name, one) for name, one in module.named_modules() if isinstance(one, Metric)]
    return {name: (one.update_count, copy.deepcopy(dict(one.metric_state))) for name, one in found}


def set_metric_states(module, states):
    """Set the values of `metric_states`."""
    for name, (count, state) in states.items():
        metric = module.get_submodule(name)
        metric._update_count = count  # a private name of torchmetrics; it has no public setter
        for key, value in state.items():
            setattr(metric, key, copy.deepcopy(value))


def logged_metrics(trainer):
    """Return the training values that `self.log` has collected in this epoch, by key. Empty if Lightning has no `_results`."""
    return getattr(trainer.fit_loop.epoch_loop, "_results", {})


# -------------------------------------------------------------------------------------------------------------- loaders
class Loader:
    """A loader that continues at a saved position, and stands for the user's loader otherwise.

    The Trainer's fetcher is the first to open it, so only that iterator gets the position.
    """

    def __init__(self, inner, driver, leads, saved):
        vars(self).update(inner=inner, driver=driver, leads=leads, saved=saved, position={}, skip=None)

    def __getattr__(self, name):
        return getattr(vars(self)["inner"], name)

    def __setattr__(self, name, value):
        setattr(self.inner, name, value)  # Lightning sets worker_init_fn

    def __len__(self):
        return len(self.inner)

    def owners(self):
        """Return the objects of the loader that may keep a state of their own."""
        found, ahead = (
            [],
            [self.inner, getattr(self.inner, "sampler", None), getattr(self.inner, "batch_sampler", None)],
        )
        while ahead:
            one = ahead.pop(0)
            if hasattr(one, "__dict__") and not any(one is other for other in found):
                found.append(one)
                # on several ranks Lightning has put a user's sampler into two objects of its own
                nested = [value for name, value in vars(one).items() if one is not self.inner]
                ahead += [
                    value
                    for value in nested
                    if isinstance(value, Sampler) or type(value).__module__.startswith("lightning.")
                ]
        return found

    def __iter__(self):
        saved, position = self.saved, {"served": 0, "first": None, "ahead": None}
        vars(self).update(saved=None, position=position)
        if saved:
            for owner, state in zip(self.owners(), saved["owners"], strict=False):
                set_user_state(owner, state)
            for owner in self.owners():
                if hasattr(owner, "set_epoch"):
                    owner.set_epoch(saved["epoch"])
            set_random_states(saved["opened"])
            if saved.get("rows"):
                share_rest(self.inner, saved)
        # a loader's own attributes are its arguments: data sets, functions
        position["owners"] = [
            user_state(one) if one is not self.inner else generators(one) for one in self.owners()
        ]
        position["opened"] = random_states()
        batches = iter(self.inner)
        vars(self).update(skip=lambda: self.skip_trained(batches, saved, position))
        return self.read(batches, saved, position)

    def read(self, batches, saved, position):
        """Yield the batches. The leading loader calls `between_steps` before each."""
        if self.leads:  # all loaders skip before the first one reads: they share the random states
            for loader in self.driver.loaders:
                loader.skip()
        self.skip()  # an iterator that was opened again, for a shorter loader
        if self.leads and saved and saved["ahead"]:  # without a length, one batch was read ahead
            set_random_states(saved["ahead"])
            position.update(ahead=saved["ahead"], served=saved["served"] + 1)
            yield next(batches)
        if self.leads and saved:
            set_random_states(saved["now"])
        while True:
            if self.leads:
                self.driver.between_steps()
            if self.driver.reads_ahead:
                position["ahead"] = random_states()
            try:
                batch = next(batches)
            except StopIteration:
                return
            position["served"] += 1
            yield batch

    def skip_trained(self, batches, saved, position):
        """Skip the batches trained before the stop, with the random numbers that they were read with."""
        if position["first"]:
            return
        if saved and saved["first"] and not saved.get("rows"):
            set_random_states(saved["first"])
        position["first"] = random_states()
        for _ in range(saved["served"] if saved and not hasattr(self, "state_dict") else 0):
            next(batches)
        position["served"] = saved["served"] if saved else 0

    def state(self, now):
        """Return the position after the batches trained, on this rank."""
        ahead = self.position["ahead"] if self.driver.reads_ahead and self.position["served"] else None
        served = self.position["served"] - (ahead is not None)
        rows = (
            {"length": len(self.dataset), "size": self.batch_size}
            if hasattr(self.inner, "dataset") and hasattr(self.dataset, "__len__")
            else {}
        )
        return {
            **self.position,
            "served": served,
            "ahead": ahead,
            "now": now,
            "epoch": self.driver.trainer.current_epoch,
            **rows,
        }


class StatefulLoader(Loader):
    """A loader that saves its own position: only random states are restored."""

    def state_dict(self):
        """Return the state of the user's loader."""
        return self.inner.state_dict()

    def load_state_dict(self, state):
        """Restore the user's loader."""
        self.inner.load_state_dict(state)


def generators(owner):
    """Return the states of an object's random generators."""
    return {
        name: ("generator", one.get_state())
        for name, one in vars(owner).items()
        if isinstance(one, torch.Generator)
    }


def share_rest(loader, saved):
    """Let the ranks share the rest of an epoch that another number of ranks has begun: each row once."""
    batch_sampler, sampler = loader.batch_sampler, loader.batch_sampler.sampler
    order = DistributedSampler(
        loader.dataset, 1, 0, shuffle=saved["shuffles"], seed=getattr(sampler, "seed", 0)
    )
    order.set_epoch(saved["epoch"])
    rest = [*order][saved["rows"] :]
    rest += rest[: -len(rest) % saved["ranks"]]

    class Rest:
        def __len__(self):
            return len(sampler)  # the length of the epoch stays

        def __iter__(self):
            batch_sampler.sampler = sampler  # the next epoch is a usual one
            return iter(rest[saved["rank"] :: saved["ranks"]])

    batch_sampler.sampler = Rest()


def count_rows_once(loader, rank, ranks):
    """Let an evaluation loader with Lightning's sampler read each row once, in as many batches on every rank."""
    if type(loader.sampler) is not DistributedSampler or type(loader.batch_sampler) is not BatchSampler:
        return
    loader.batch_sampler.sampler = UnrepeatedDistributedSampler(
        loader.dataset, ranks, rank, shuffle=loader.sampler.shuffle
    )
    fewest, more = divmod(len(loader.dataset), ranks)
    wanted = loader.batch_sampler.batch_size
    sizes = [
        *range(wanted, 1, -1),
        *range(wanted + 1, fewest + 2),
    ]  # with one row more, some ranks would have a batch more
    loader.batch_sampler.batch_size = next(size for size in sizes if fewest % size) if more else wanted


# ------------------------------------------------------------------------------------------------------------- callback
class Driver(Checkpoint):
    """Saves and restores all state of a training, and stops it when a rank has been asked to.

    Args:
        folder: where `save_checkpoint` is asked to write.
        every: save after this many optimizer steps.
        monitor: name of the metric that decides which checkpoint is the best; smaller is better.
        seconds: time between two exchanges of the ranks about a stop.
    """

    def __init__(self, folder, every=0, monitor=None, seconds=1.0, signals=()):
        self.dirpath, self.every, self.monitor, self.seconds, self.signals = (
            str(folder),
            every,
            monitor,
            seconds,
            signals,
        )
        self.best_model_path = self.last_model_path = ""
        self.best_model_score, self.best_k_models = None, {}
        self.loaders, self.saved, self.sums, self.left_out, self.starts = [], None, {}, {}, []
        self.requested = self.urgent = self.runs = self.reads_ahead = self.is_between = False
        self.shift, self.validated, self.loader_index = {}, {}, None
        self.exchanges, self.next_exchange, self.exchanged_at, self.pace, self.saved_step = 0, 0, 0.0, 1, 0

    # -------- loaders
    def wrap(self, loader, trainer):
        """Return the loader that the Trainer uses instead of a user's. The strategy calls this for each loader."""
        if not trainer.training:
            if trainer.world_size > 1 and isinstance(loader, DataLoader):
                count_rows_once(loader, trainer.global_rank, trainer.world_size)
            return loader
        if self.loaders and self.loaders[0].position:  # they were opened: these are new ones
            self.loaders = []
        kind = (
            StatefulLoader if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict") else Loader
        )
        positions = self.saved["loaders"] if self.saved and not self.runs else []
        saved = positions[len(self.loaders)] if len(self.loaders) < len(positions) else None
        self.loaders.append(kind(loader, self, not self.loaders, saved))
        try:
            len(loader)
        except (TypeError, NotImplementedError):
            self.reads_ahead = True
        return self.loaders[-1]

    # -------- saving
    def state_dict(self):
        """Return the state of all ranks. Lightning calls this on each of them."""
        trainer, module, now = self.trainer, self.trainer.lightning_module, random_states()
        items = [
            (key, one)
            for key, one in logged_metrics(trainer).items()
            if one.is_tensor and one.meta.on_epoch and not one.has_reset
        ]
        own = {
            "loaders": [loader.state(now) for loader in self.loaders if loader.position],
            "random": now,
            "users": [user_state(one, start) for one, start in zip(self.users(), self.starts, strict=False)],
            "metrics": metric_states(module),
            "logged": {key: (one.value, getattr(one, "cumulated_batch_size", 0)) for key, one in items},
            "shown": {name: value.detach() for name, value in trainer.callback_metrics.items()},
            "should_stop": trainer.should_stop,
            "validated": self.validated,
        }
        ranks = [own]
        if trainer.world_size > 1:
            ranks = [None] * trainer.world_size
            distributed.all_gather_object(ranks, own)
        paths = {"best_model_path": self.best_model_path, "best_model_score": self.best_model_score}
        return {
            "ranks": ranks,
            "paths": paths,
            "shuffles": [getattr(getattr(one, "sampler", None), "shuffle", True) for one in self.loaders],
        }

    def save(self, name):
        """Save a checkpoint between two steps. Hooks that draw random numbers don't change those of the training."""
        states = random_states()
        self.last_model_path = str(Path(self.dirpath, f"{name}.ckpt"))
        self.trainer.save_checkpoint(self.last_model_path)
        set_random_states(states)

    def on_save_checkpoint(self, trainer, module, checkpoint):
        """Note whether the checkpoint lies between two steps, and not in a hook of user code."""
        checkpoint["between_steps"] = self.is_between

    # -------- restoring
    def setup(self, trainer, module, stage):
        """Keep the Trainer, which `state_dict` needs."""
        self.trainer = trainer

    def on_load_checkpoint(self, trainer, module, checkpoint):
        """Adapt the position to this number of ranks, before Lightning reads it."""
        state = checkpoint["callbacks"][self.state_key]
        ranks, loops = state["ranks"], checkpoint["loops"]["fit_loop"]
        self.saved = copy.deepcopy(ranks[trainer.global_rank % len(ranks)])
        vars(self).update(state["paths"])
        if checkpoint["between_steps"]:
            as_saved_after_batch(loops)
        if len(ranks) != trainer.world_size:
            (position,) = self.saved["loaders"]
            length, size, done = (
                position["length"],
                position["size"],
                position["served"] * position["size"] * len(ranks),
            )

            def batches(rows):
                return math.ceil(math.ceil(rows / trainer.world_size) / size)

            count = batches(length) - batches(length - done)
            for progress in ("total", "current"):
                counters = loops["epoch_loop.batch_progress"][progress]
                counters.update({key: value + count - position["served"] for key, value in counters.items()})
            position.update(
                served=0,
                rows=done,
                rank=trainer.global_rank,
                ranks=trainer.world_size,
                shuffles=state["shuffles"][0],
                owners=[],
            )
            self.saved["logged"] = {}

    def load_state_dict(self, state):
        """Do nothing: `on_load_checkpoint` has read the state."""

    def started(self):
        """Restore what start hooks change. The strategy calls this after all of them."""
        trainer, saved = self.trainer, self.saved
        self.handle_signals()
        self.starts = [
            {name: pickle.dumps(one) for name, one in user_state(user).items()} for user in self.users()
        ]
        if saved:
            module = trainer.lightning_module
            if self.left_out:
                module.load_state_dict(
                    {**module.state_dict(), **self.left_out}
                )  # weights that a start hook has added
            for owner, state, start in zip(self.users(), saved["users"], self.starts, strict=False):
                set_user_state(owner, state)
                for name in state:
                    start.pop(name, None)  # changed once, saved for ever
            set_metric_states(module, saved["metrics"])
            trainer.callback_metrics.update(saved["shown"])
            trainer.should_stop |= saved["should_stop"]
            self.sums, self.shift, self.validated = (
                saved["logged"],
                saved["validated"],
                dict(saved["validated"]),
            )
        self.resumed_batches = trainer.fit_loop.batch_idx + 1
        self.saved, self.runs, self.next_exchange = None, True, trainer.global_step + 1
        self.exchanged_at = time.monotonic()

    def users(self):
        """Return the module and the callbacks of users."""
        callbacks = [
            one for one in self.trainer.callbacks if not type(one).__module__.startswith("lightning.")
        ]
        return [
            self.trainer.lightning_module,
            *(one for one in callbacks if one is not self and type(one) is not First),
        ]

    def add_sums(self, trainer, last):
        """Add the values that were logged before the stop to those of this epoch."""
        for key in [key for key in self.sums if last or key.startswith("training_step.")]:
            metric = logged_metrics(trainer).get(key)
            if metric is None or metric.has_reset:
                continue
            value, rows = self.sums.pop(key)
            if metric.meta.is_max_reduction or metric.meta.is_min_reduction:
                metric.value = metric.meta.reduce_fx(torch.stack([metric.value, value]))
            else:
                metric.value = metric.value + value
            if metric.meta.is_mean_reduction:
                metric.cumulated_batch_size = metric.cumulated_batch_size + rows

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        """Continue the means of the interrupted epoch."""
        if self.sums:
            self.add_sums(trainer, last=False)

    def on_train_epoch_end(self, trainer, module):
        """Step the schedules that watch a metric: Lightning leaves this out in an epoch that was resumed."""
        if not trainer.fit_loop.restarting or not module.automatic_optimization:
            return
        for config in trainer.lr_scheduler_configs:
            if (
                config.reduce_on_plateau
                and config.interval == "epoch"
                and (trainer.current_epoch + 1) % config.frequency == 0
            ) and (metric := trainer.callback_metrics.get(config.monitor)) is not None:
                module.lr_scheduler_step(config.scheduler, metric)

    def on_validation_end(self, trainer, module):
        """Save the best weights."""
        if self.monitor is None or trainer.sanity_checking:
            return
        score = trainer.callback_metrics[self.monitor]
        if self.best_model_score is None or score < self.best_model_score:
            self.best_model_score, self.best_model_path = score, str(Path(self.dirpath, "best.ckpt"))
            self.best_k_models = {self.best_model_path: score}
            trainer.save_checkpoint(self.best_model_path, weights_only=True)

    # -------- stopping
    def handle_signals(self):
        """Set the handlers, which Lightning's own ones would replace in `fit`."""
        for number in self.signals:
            signal.signal(number, lambda *_: setattr(self, "requested", True))

    def exchange(self):
        """Let all ranks know about a request. Return whether there is one."""
        trainer = self.trainer
        if trainer.world_size == 1:
            return self.requested
        if trainer.global_step < self.next_exchange:
            return False
        now, self.exchanges = time.monotonic(), self.exchanges + 1
        pace = (
            self.pace * self.seconds / max(now - self.exchanged_at, 1e-6)
        )  # steps until the next exchange, by rank 0's clock
        own = [float(self.requested), min(max(pace, 1.0), 1000.0) if trainer.is_global_zero else 0.0]
        requested, pace = trainer.strategy.reduce(
            torch.tensor(own, device=trainer.strategy.root_device), reduce_op="sum"
        ).tolist()
        self.pace, self.exchanged_at = int(pace), now
        self.next_exchange = trainer.global_step + self.pace
        return requested > 0

    def between_steps(self):
        """Save and stop if due. The leading loader calls this before it reads a batch."""
        trainer = self.trainer
        batches = trainer.fit_loop.batch_idx + 1
        if not self.runs or not trainer.training or batches % trainer.accumulate_grad_batches:
            return
        if self.sums and batches > self.resumed_batches:
            self.add_sums(trainer, last=True)
            self.sums = {}
        stops, step = self.exchange(), trainer.global_step
        if stops or (self.every and step and step % self.every == 0 and step != self.saved_step):
            self.is_between, self.saved_step = True, step
            self.save(f"step{step}")
            self.is_between = False
        if stops:
            raise TrainingStopped

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
        """Count the batches, which are the steps of what `validation_step` logs."""
        if not trainer.sanity_checking:
            self.loader_index, self.validated[dataloader_idx] = (
                dataloader_idx,
                self.validated.get(dataloader_idx, 0) + 1,
            )

    def on_validation_epoch_end(self, trainer, module):
        """Note that what is logged from now on has the step of the training."""
        self.loader_index = None

    def logged_step(self, step):
        """Return the step for a logger: after a resume Lightning counts validation batches from 0 again."""
        return step + self.shift.get(self.loader_index, 0) if self.loader_index is not None else step

    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        """Stop within a validation if time is short: the job resumes from the newest point within an epoch."""
        if self.urgent and self.requested and trainer.world_size == 1:
            raise TrainingStopped


class First(pl.Callback):
    """The part of the driver that comes before all callbacks of users."""

    def __init__(self, driver):
        self.driver = driver

    def on_train_epoch_end(self, trainer, module):
        """Continue the means of values that were logged in hooks after the driver's, before a hook reads them."""
        self.driver.add_sums(trainer, last=True)
        self.driver.sums = {}


def as_saved_after_batch(loops):
    """Make the counters of Lightning those of a checkpoint of `on_train_batch_end`, which it resumes without a second validation."""
    for progress in ("total", "current"):
        loops["epoch_loop.batch_progress"][progress]["completed"] -= 1
    epoch_loop = loops["epoch_loop.state_dict"]
    if "_batches_that_stepped" in epoch_loop:  # the step of logged values
        epoch_loop["_batches_that_stepped"] -= 1


# ------------------------------------------------------------------------------------------------------------- strategy
class Hooks:
    """Public hooks of a strategy that no callback has."""

    def __init__(self, driver, **arguments):
        super().__init__(**arguments)
        self.driver = driver

    def process_dataloader(self, dataloader):
        """Wrap a loader. Lightning has put its distributed sampler in before."""
        return self.driver.wrap(super().process_dataloader(dataloader), self.driver.trainer)

    def on_train_start(self):
        """Restore state after the start hooks of callbacks and module."""
        super().on_train_start()
        self.driver.started()

    def barrier(self, name=None):
        """Set the signal handlers again, since Lightning has just set its own between two barriers."""
        self.driver.handle_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.driver.signals)
        super().barrier(name)
        if (
            name == "_CheckpointConnector.resume_end"
        ):  # the last one before Lightning's handlers: none of them may run
            signal.pthread_sigmask(signal.SIG_BLOCK, self.driver.signals)

    def reduce(self, tensor, group=None, reduce_op="mean"):
        """Reduce a tensor over the ranks. The mean of integers, such as numbers of rows, is not an integer."""
        if (
            isinstance(tensor, torch.Tensor)
            and reduce_op in ("mean", "avg")
            and not tensor.is_floating_point()
        ):
            tensor = tensor.to(torch.get_default_dtype())
        return super().reduce(tensor, group=group, reduce_op=reduce_op)

    def load_model_state_dict(self, checkpoint, strict=True):
        """Load the weights, and keep those that only a start hook will add."""
        known = self.lightning_module.state_dict()
        weights = checkpoint["state_dict"]
        self.driver.left_out = {name: value for name, value in weights.items() if name not in known}
        super().load_model_state_dict(
            {"state_dict": {n: w for n, w in weights.items() if n in known}}, strict
        )


class Single(Hooks, SingleDeviceStrategy):
    """One device."""


class Ddp(Hooks, DDPStrategy):
    """DistributedDataParallel."""


def share_monitored(module, names):
    """Let a module log the metrics that decide over all ranks, if it does not by itself."""
    log = module.log

    def shared(name, value, *arguments, **named):
        if name in names and not arguments and not named.get("rank_zero_only"):
            named["sync_dist"] = True
        return log(name, value, *arguments, **named)

    module.log = shared


# ------------------------------------------------------------------------------------------------------------------ files
class LocalFirst(CheckpointIO):
    """Writes checkpoints in the background: to the node's disk, then atomically and with a checksum to the run folder.

    Those outside of `shared` are user code's, and are written at once.
    """

    def __init__(self, local, shared):
        self.local, self.shared, self.waiting, self.error = Path(local), Path(shared), queue.Queue(1), None
        threading.Thread(target=self.work, daemon=True).start()

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        """Copy a checkpoint and start writing it."""
        if self.shared not in Path(path).parents:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            torch.save(checkpoint, path)
            return
        copied = apply_to_collection(
            copy.copy(checkpoint), torch.Tensor, lambda x: x.detach().to("cpu", copy=True)
        )
        self.waiting.put((copied, Path(path)))

    def work(self):
        """Write what waits."""
        while True:
            state, path = self.waiting.get()
            try:
                near, part = self.local / path.name, path.with_suffix(".part")
                near.parent.mkdir(parents=True, exist_ok=True)
                path.parent.mkdir(parents=True, exist_ok=True)
                torch.save(state, near)
                data = near.read_bytes()
                part.write_bytes(data)
                path.with_suffix(".sha256").write_text(hashlib.sha256(data).hexdigest())
                os.replace(part, path)
            except OSError as error:
                self.error = error
            self.waiting.task_done()

    def load_checkpoint(self, path, map_location=None, weights_only=None):
        """Return a checkpoint, after a check of its sum."""
        self.waiting.join()
        check = Path(path).with_suffix(".sha256")
        if check.exists() and check.read_text() != hashlib.sha256(Path(path).read_bytes()).hexdigest():
            raise ValueError(f"{path} is damaged.")
        return torch.load(path, map_location="cpu", weights_only=False)

    def remove_checkpoint(self, path):
        """Remove a checkpoint."""
        Path(path).unlink(missing_ok=True)

    def teardown(self):
        """Wait until all is written."""
        self.waiting.join()
