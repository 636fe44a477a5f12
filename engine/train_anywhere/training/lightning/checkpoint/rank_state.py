"""State of each rank within an epoch: metrics so far, and the position in a loader."""

import io
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn
from torchmetrics import Metric

META = ("prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx", "metric_attribute")
"""Attributes in which Lightning keeps the arguments of `self.log`."""

SHOWN = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
"""Attributes of Lightning's logger connector with the values that user code reads from the Trainer."""


class RankState(pl.Callback):
    """Callback that saves the sums of `self.log`, torchmetrics and loader positions by rank.

    With it, the metrics of an interrupted epoch are those of an uninterrupted one, and so is a schedule that watches one of them.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report = report
        self.saved: dict[str, Any] | None = None
        self._kept: dict[str, Any] = {}

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Gather the states of all ranks."""
        own = {
            "logged": _logged_metrics(trainer),
            **(self._kept or _read_metrics(trainer, pl_module)),
            "loader": trainer.strategy.training_loaders.state(),
        }
        checkpoint["rank_states"] = gather(own, trainer)

    def before_validation(self, trainer: pl.Trainer) -> None:
        """Keep the metrics: a run that is stopped in a validation within training runs it again."""
        self._kept = _read_metrics(trainer, trainer.lightning_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the metrics before the validation."""
        self._kept = {}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep this rank's state until training starts, and restore the loader's position now."""
        saved = checkpoint.get("rank_states", [])
        if len(saved) != trainer.world_size:
            self.report(
                f"metrics of the interrupted epoch start anew: {len(saved)} ranks counted them, and this run has {trainer.world_size}."
            )
            self.saved = unpack(saved[0]) | {"metrics": {}, "logged": []} if saved else None
            return
        self.saved = unpack(saved[trainer.global_rank])
        trainer.strategy.training_loaders.keep(self.saved["loader"])

    def training_started(self, trainer: pl.Trainer) -> None:
        """Restore the metrics after the last batch, without those that start hooks logged again."""
        saved, self.saved = self.saved, None
        if saved is None or not trainer.ckpt_path:  # LearningRateFinder restores a checkpoint of its own
            return
        module: Any = trainer.lightning_module
        connector: Any = trainer._logger_connector
        connector.reset_results()
        trainer.fit_loop.epoch_loop._results.clear()  # Lightning refuses other arguments for a name
        found = dict(_metrics(module))
        for name, state in saved["metrics"].items():
            if name in found:
                _restore_metric(found[name], state, module.device)
        for entry in saved["logged"]:
            _restore_logged(trainer, module, entry)
        if batches := trainer.fit_loop.epoch_loop.batch_progress.current.ready:
            connector._first_loop_iter = batches == 1
        for kind, values in saved["shown"].items():
            setattr(connector, kind, move_data_to_device(values, module.device))


def _metrics(module: nn.Module) -> list[tuple[str, Metric]]:
    return [(name, m) for name, m in module.named_modules() if isinstance(m, Metric)]


def _metric_state(metric: Metric) -> dict[str, Any]:
    state = {n: [*v] if isinstance(v, list) else v.clone() for n, v in metric.metric_state.items()}
    return {"updates": metric._update_count, "state": state}


def _restore_metric(metric: Metric, saved: dict[str, Any], device: torch.device) -> None:
    for name, value in saved["state"].items():
        moved = [v.to(device) for v in value] if isinstance(value, list) else value.to(device)
        setattr(metric, name, moved)
    metric._update_count, metric._computed = saved["updates"], None


def _logged_metrics(trainer: pl.Trainer) -> list[dict[str, Any]]:
    """Return the values that were logged in this training epoch."""
    entries = []
    for metric in trainer.fit_loop.epoch_loop._results.values():
        meta = metric.meta
        if metric.has_reset:
            continue
        entry = {name: getattr(meta, name) for name in META} | {"fx": meta.fx, "name": meta.name}
        entry |= {
            "reduce_fx": meta.reduce_fx.__name__,
            "sync": meta.sync.should,
            "first": meta.sync.rank_zero_only,
            "caches": (metric._forward_cache, metric._computed),
        }
        if metric.is_tensor:
            entry |= {"value": metric.value, "size": getattr(metric, "cumulated_batch_size", None)}
        entries.append(entry)
    return entries


def _read_metrics(trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, Any]:
    """Return the states of torchmetrics, and the values that user code reads from the Trainer."""
    shown = {kind: getattr(trainer._logger_connector, kind) for kind in SHOWN}
    return {
        "metrics": {name: _metric_state(metric) for name, metric in _metrics(module)},
        "shown": {
            kind: {name: v.detach() if isinstance(v, Tensor) else v for name, v in values.items()}
            for kind, values in shown.items()
        },
    }


def _restore_logged(trainer: pl.Trainer, module: pl.LightningModule, entry: dict[str, Any]) -> None:
    results, fx, name = trainer.fit_loop.epoch_loop._results, entry["fx"], entry["name"]
    attribute = entry["metric_attribute"]
    value = entry["value"].to(module.device) if "value" in entry else module.get_submodule(attribute)
    results.log(
        fx,
        name,
        value,
        reduce_fx=getattr(torch, entry["reduce_fx"]),
        sync_dist=False,
        sync_dist_fn=trainer.strategy.reduce,
        rank_zero_only=entry["first"],
        batch_size=1,
        **{key: entry[key] for key in META},
    )
    metric = results[f"{fx}.{name}"]
    metric.meta.sync.should = entry["sync"]
    metric._forward_cache, metric._computed = move_data_to_device(entry["caches"], module.device)
    if "value" in entry:
        metric.value = value
        if entry["size"] is not None:
            metric.cumulated_batch_size = entry["size"].to(module.device)


def unpack(state: Tensor) -> dict[str, Any]:
    """Return the state of a rank from its bytes, which `gather` returned."""
    unpacked: dict[str, Any] = torch.load(io.BytesIO(state.numpy().tobytes()), weights_only=True)
    return unpacked


def gather(own: dict[str, Any], trainer: pl.Trainer) -> list[Tensor]:
    """Return the state of each rank as bytes (uint8 [n]). All ranks must call it."""
    buffer = io.BytesIO()
    torch.save(own, buffer)
    packed = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    if trainer.world_size == 1:
        return [packed]
    device, strategy = trainer.strategy.root_device, trainer.strategy
    sizes = strategy.all_gather(torch.tensor([len(packed)], device=device)).flatten().tolist()
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded[: len(packed)] = packed.to(device)
    gathered = strategy.all_gather(padded).reshape(len(sizes), -1).cpu()
    return [row[:size].clone() for row, size in zip(gathered, sizes, strict=True)]
