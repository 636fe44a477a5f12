"""Lightning's logger connector, changed to reduce logged values over ranks, and loggers."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from numbers import Real
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.loggers.logger import DummyExperiment, DummyLogger
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from train_anywhere.errors import ConfigError
from train_anywhere.runs.metrics_csv import prefix_reserved_names
from train_anywhere.training.lightning.loop.private import _LoggerConnector, _ResultCollection
from train_anywhere.training.tracking import GuardedLogger


class RunLogger(Logger):
    """A logger of the run without a tracker. Values of user code go to metrics.csv.

    Args:
        name: name in the configuration.
        tracked: the tracker, only on rank 0; the Trainer calls `finalize` after fit and again after test, so
            `train_anywhere.training.lightning.run` calls `close` instead.
    """

    def __init__(self, name: str, folder: Path, version: str, tracked: GuardedLogger | None = None) -> None:
        super().__init__()
        self._run_name, self._folder, self._run_version, self.tracked = name, folder, version, tracked

    @property
    def name(self) -> str:
        """Name in the configuration."""
        return self._run_name

    @property
    def version(self) -> str:
        """Id of the run."""
        return self._run_version

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self._folder)

    log_dir = save_dir

    @property
    def experiment(self) -> Any:
        """W&B's Run, MLflow's client, or the configured object. A dummy on other ranks."""
        if not self.tracked:
            return DummyExperiment()
        return getattr(self.tracked.logger, "experiment", self.tracked.logger)

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run, for calls of its client."""
        return getattr(self.tracked and self.tracked.logger, "id", None)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log one point of each metric, without the epoch number that Lightning adds."""
        if self.tracked:
            self.tracked.log_metrics({k: v for k, v in metrics.items() if k != "epoch"}, step or 0)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: trackers and the run folder have the configuration already."""

    after_save_checkpoint = finalize = log_hyperparams

    def close(self, state: str) -> None:
        """Close the tracker. The `state` is completed, preempted or failed."""
        if self.tracked:
            self.tracked.finalize(state)


class RunWandb(RunLogger, WandbLogger):
    """The same as a WandbLogger, with its `log_image`, `watch` and others, for `loggers=wandb`."""


def receive_calls(logger: Logger, receive: Callable[[Mapping[str, Any]], None]) -> Logger:
    """Return the logger, changed so that `receive` gets what is logged too."""
    log_metrics = logger.log_metrics

    def received(*args: Any, **named: Any) -> Any:
        receive(named["metrics"] if "metrics" in named else args[0])
        return log_metrics(*args, **named)

    logger.log_metrics = received
    return logger


HASHES = 4
"""Number of hashes of the logged names that ranks compare; each is below 2**20, so that sums of squares are exact."""


class Results(_ResultCollection):
    """Lightning's logged values, with `sync_dist=True` as a mean over the rows of all ranks.

    Lightning takes the mean over the ranks, and a mean of the integer numbers of rows: both are wrong if the ranks have different
    numbers of rows. Values of an epoch are reduced by `reduce_logged`, unless a hook reads them earlier.
    """

    def __init__(self, training: bool) -> None:
        super().__init__(training)
        self._over_ranks: Any = None
        self._rows: int | Tensor = 1

    def log(self, *arguments: Any, sync_dist_fn: Any, **named: Any) -> None:
        """Log a value, which `sync_dist_fn` reduces over the ranks."""
        self._over_ranks = sync_dist_fn
        super().log(*arguments, sync_dist_fn=self._sync, **named)

    def update_metrics(self, key: str, value: Any, batch_size: int) -> None:
        """Add a value, and keep the number of its rows for the mean of this step."""
        self[key].rows = self._rows = batch_size
        super().update_metrics(key, value, batch_size)
        self._rows = 1

    def _extract_batch_size(self, value: Any, batch_size: int | None, meta: Any) -> int:
        known: int | None = self.batch_size  # type: ignore[has-type]
        unknown = batch_size is known is None and self.batch is not None
        if unknown and value.is_tensor and meta.on_step and meta.is_mean_reduction:
            with suppress(MisconfigurationException):
                self.batch_size = extract_batch_size(self.batch)
        return super()._extract_batch_size(value, batch_size, meta)

    def _sync(self, value: Tensor, reduce_op: str, group: Any) -> Tensor:
        if reduce_op != "mean":
            return self._over_ranks(value, reduce_op=reduce_op, group=group)
        rows = torch.as_tensor(self._rows, dtype=torch.float64, device=value.device)
        total, count = self._over_ranks(torch.stack([value * rows, rows]), reduce_op="sum", group=group)
        return (total / count).to(value.dtype if value.is_floating_point() else torch.float64)


def reduce_logged(
    results: Any, strategy: Strategy, on_step: bool, known: set[str], monitors: Iterable[str] = ()
) -> set[str]:
    """Replace this rank's logged values by those over all ranks. All ranks must call this.

    A mean is taken over all rows, weighted by the batch sizes. Values logged with `rank_zero_only=True` stay as they are, and so
    do values that are reduced elsewhere: torchmetrics, and those of a process group or of a step with `sync_dist=True`.

    Lightning's `results` are those of the current loop. With `on_step`, the values of the last step are reduced, else those of the
    epoch, except for keys in `known`. Returns the keys that are reduced now.

    Raises:
        ConfigError: the ranks have logged different names, or one of `monitors` only on rank 0. Continuing would hang or give wrong
            metrics.
    """
    logged = {
        k: m
        for k, m in results.valid_items()
        if k not in known and bool(m.meta.on_step if on_step else m.meta.on_epoch)
    }
    items = {key: metric for key, metric in logged.items() if not metric.meta.sync.rank_zero_only}
    refused = {metric.meta.name for key, metric in logged.items() if key not in items} & {*monitors}
    _refuse_different_names(items, refused, strategy)
    here = [m for m in items.values() if m.is_tensor]
    if on_step:
        steps = [m for m in here if not m.meta.sync.should]
        for metric, value in zip(steps, _reduce_metrics(steps, on_step, strategy), strict=True):
            metric._forward_cache = value
            if not metric.meta.on_epoch:
                metric.value = value
        return set()
    epochs = [m for m in here if not (m.meta.sync.should and m.meta.sync.group)]
    for metric, value in zip(epochs, _reduce_metrics(epochs, on_step, strategy), strict=True):
        metric._computed = value  # until the next update; this rank's own sum stays as it is
    return set(items)


def _refuse_different_names(names: Iterable[str], refused: set[str], strategy: Strategy) -> None:
    """Raise ConfigError unless all ranks have logged the same names, and none of `refused`."""
    listed = list(names)
    digest = hashlib.sha256("\n".join(listed).encode()).digest()
    own = [int.from_bytes(digest[4 * n : 4 * n + 4]) % 2**20 for n in range(HASHES)]
    rows = [*([n, n * n] for n in own), [len(refused), 0]]
    numbers = torch.tensor(rows, dtype=torch.float64, device=strategy.root_device)
    *summed, (alone, _) = strategy.reduce(numbers, reduce_op="sum").tolist()
    ranks = getattr(strategy, "world_size", 1)
    if alone:
        raise ConfigError(
            "the monitored metric is logged with rank_zero_only=True, and all ranks must know it; log it on all ranks with "
            "sync_dist=True."
        )
    if any(ranks * squares != total * total for total, squares in summed):
        named = ", ".join(dict.fromkeys(name.partition(".")[2] for name in listed)) or "nothing"
        raise ConfigError(
            f"the ranks logged different metrics (rank {strategy.global_rank}: {named}); call self.log on all ranks, or use "
            "rank_zero_only=True."
        )


def _reduce_metrics(metrics: list[Any], on_step: bool, strategy: Strategy) -> list[Tensor]:
    """Return values over all ranks. A mean is weighted by the rows."""
    parts: list[tuple[Tensor, str]] = []
    for metric in metrics:
        meta, value = metric.meta, (metric._forward_cache if on_step else metric.value).double()
        mean = meta.is_mean_reduction
        rows = torch.as_tensor((metric.rows if on_step else metric.cumulated_batch_size) if mean else 1.0)
        kind = "max" if meta.is_max_reduction else "min" if meta.is_min_reduction else "sum"
        parts += [(value * rows if on_step and mean else value, kind), (rows.double(), "sum")]
    reduced = iter(_reduce_values(parts, strategy))
    return [
        (total / rows if metric.meta.is_mean_reduction else total).to(metric.value)
        for metric, total, rows in zip(metrics, reduced, reduced, strict=True)
    ]


def _reduce_values(values: list[tuple[Tensor, str]], strategy: Strategy) -> list[Tensor]:
    """Return each value reduced over the ranks, with one exchange for each kind of reduction."""
    out: list[Any] = [None] * len(values)
    for kind in ("sum", "min", "max"):
        places = [n for n, (_, reduction) in enumerate(values) if reduction == kind]
        if not places:
            continue
        together = torch.stack([values[n][0].detach().double().to(strategy.root_device) for n in places])
        reduced = strategy.reduce(together, reduce_op=kind)
        for n, value in zip(places, reduced, strict=True):
            out[n] = value.to(values[n][0])
    return out


Receiver = Callable[[bool, pl.Trainer, Mapping[str, float]], None]
"""Called with: whether the Trainer's loop logs (else a callback), the Trainer, and the values by name."""


class Connector(_LoggerConnector):
    """Lightning's logger connector with three changes.

    Values of `self.log` are reduced over all ranks, in one exchange when they are read: at a logged step, at the end of a loop,
    and at the end of its hooks. `collected` has every metric of the last loop, including those logged only for callbacks.
    The hook `epoch_over` of callbacks is called when everything else of an epoch is done: the module's hooks, schedules that watch a
    metric, and the epoch's metrics. So a checkpoint that is saved there holds all of them.
    A receiver gets all values that are passed to the loggers, without being one of them.

    Args:
        monitors: names of the metrics that the configuration monitors.

    Attributes:
        collected: metrics by name, of the loop that ended last.
    """

    def __init__(self, trainer: pl.Trainer, monitors: Iterable[str]) -> None:
        super().__init__(trainer)
        self.monitors = [*monitors]
        self.collected: dict[str, Any] = {}
        self._logging = False
        self._receive: Receiver = lambda *_: None
        self._reduced: set[str] = set()
        self._step_reduced = False

    def on_batch_start(self, batch: Any, dataloader_idx: int | None = None) -> None:
        """Treat values that are logged from now on as this rank's own."""
        self._reduced, self._step_reduced = set(), False
        super().on_batch_start(batch, dataloader_idx)

    def update_train_step_metrics(self) -> None:
        """Log a training step if due."""
        if self.should_update_logs:
            self._reduce(on_step=True)
            self._step_reduced = True
        super().update_train_step_metrics()

    def update_eval_step_metrics(self, step: int) -> None:
        """Log an evaluation step, without an exchange if it has no value: the ranks may have different numbers of batches."""
        if any(metric.meta.on_step for metric in self.trainer._results.values()):  # type: ignore[union-attr]
            self._reduce(on_step=True)
        super().update_eval_step_metrics(step)

    def epoch_end_reached(self) -> None:
        """Reduce the epoch's metrics after its last batch, before the hooks that may read them."""
        super().epoch_end_reached()
        if self.trainer.training:
            # in a resumed epoch Lightning would not update schedules that watch a metric
            self.trainer.fit_loop.restarting = False
        self._reduce(on_step=False)

    def on_epoch_end(self) -> None:
        """Reduce again after the hooks, and collect the values of the last training step."""
        self._reduce(on_step=False)
        if self.trainer.training:
            if not self._step_reduced:
                self._reduce(on_step=True)
            steps = [m for m in self.trainer._results.values() if not m.has_reset and not m.meta.on_epoch]
            self.collected = {m.meta.name: m._forward_cache for m in steps if m._forward_cache is not None}
        super().on_epoch_end()
        self.collected |= self.metrics["callback"]

    def update_eval_epoch_metrics(self) -> Any:
        """Collect the metrics at the end of an evaluation or of one of its loaders."""
        logged = super().update_eval_epoch_metrics()
        self.collected |= self.metrics["callback"]
        return logged

    def update_train_epoch_metrics(self) -> None:
        """Log the epoch's metrics, then call `epoch_over` of the callbacks."""
        super().update_train_epoch_metrics()
        callbacks: list[Any] = self.trainer.callbacks
        for callback in callbacks:
            if hasattr(callback, "epoch_over"):
                callback.epoch_over(self.trainer, self.trainer.lightning_module)

    def connect(self, loggers: Iterable[Logger], receive: Receiver) -> None:
        """Give the Trainer its loggers, and the receiver all logged values, on every rank."""
        self.trainer.loggers = [receive_calls(logger, self._receive_call) for logger in loggers]
        self._receive = receive

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Pass metrics to all loggers and to the receiver."""
        # Lightning's loggers use the metric "step" as their step
        axis = {"step": metrics["step"]} if "step" in metrics else {}
        named = prefix_reserved_names(metrics, self.trainer.is_global_zero)
        with self._own_calls():
            super().log_metrics(named | axis, step)
        # LearningRateFinder sets a dummy
        tunes = any(isinstance(logger, DummyLogger) for logger in self.trainer.loggers)
        if metrics and not (self.trainer.sanity_checking or tunes):
            self._receive(True, self.trainer, _numbers(named))

    def send(self, metrics: Mapping[str, float], step: int) -> None:
        """Pass metrics of this project's loop to all loggers."""
        with self._own_calls():
            for logger in self.trainer.loggers:
                logger.log_metrics(metrics, step=step)
                logger.save()

    @contextmanager
    def metrics_kept(self) -> Iterator[None]:
        """Undo what hooks change that read metrics of an unfinished epoch."""
        known = (self._callback_metrics, self._logged_metrics, self._progress_bar_metrics)
        before = [dict(metrics) for metrics in known]
        computed = [(metric, metric._computed) for metric in (self.trainer._results or {}).values()]
        yield
        for metric, value in computed:
            metric._computed = value
        for metrics, values in zip(known, before, strict=True):
            metrics.clear()
            metrics.update(values)

    @contextmanager
    def _own_calls(self) -> Iterator[None]:
        self._logging = True
        try:
            yield
        finally:
            self._logging = False

    def _receive_call(self, metrics: Mapping[str, Any]) -> None:
        """Receive what a callback or module passes to a logger itself, such as LearningRateMonitor."""
        if not self._logging and not self.trainer.sanity_checking:
            values = _numbers({name: value for name, value in metrics.items() if name != "epoch"})
            self._receive(False, self.trainer, prefix_reserved_names(values, self.trainer.is_global_zero))

    def _reduce(self, on_step: bool) -> None:
        results = self.trainer._results
        strategy = self.trainer.strategy
        if self.trainer.world_size > 1 and results is not None:
            self._reduced |= reduce_logged(results, strategy, on_step, self._reduced, self.monitors)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, Real) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    }
