"""The lines at the start of a run."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from train_anywhere.config.keys import MODULE, choice_name
from train_anywhere.config.limits import MAX_COUNT
from train_anywhere.config.schema import Config
from train_anywhere.training.plan import Plan, batches_per_step


@dataclass(frozen=True)
class Header:
    """Facts of a run that are known once its model and data are built.

    Attributes:
        model: name of the network, such as cnn or MyLightningModule.
        parameters: number of all weights; None if they do not exist yet (lazy layers).
        rows: rows of each split, by its name; None if a split does not have a known length.
        device: kind of the devices, such as `cpu` or `NVIDIA H100`.
        devices: number of devices that share the global batch.
    """

    model: str
    parameters: int | None
    trained: int | None
    rows: Mapping[str, int | None]
    device: str
    devices: int
    strategy: str

    def lines(self, config: Config, plan: Plan | None) -> list[str]:
        """Return the header as it is printed. Before the run, the plan may be unknown."""
        t, many = config.trainer, self.devices > 1
        frozen = f", {self.trained:,} trained" if self.trained != self.parameters else ""
        parameters = "" if self.parameters is None else f", {self.parameters:,} parameters{frozen}"
        batch = plan.batch_per_rank if plan else config.data.batch_size // self.devices
        accumulate = plan.accumulate if plan else batches_per_step(config)
        per_device = f" ({batch} per device)" if many else ""
        accumulated = f", {accumulate} batches per step" if accumulate > 1 else ""
        splits = "".join(f", {count:,} {name}" for name, count in self.rows.items() if count)
        data = config.task if config.data.name == MODULE else config.data
        kind = f"{self.devices} x {self.device}" if many else self.device
        epochs = plan.max_epochs if plan else t.epoch_limit
        at_most = f"{t.max_steps:,}, at most " if t.max_steps else ""
        steps = f"{plan.total_steps:,} in " if plan and plan.steps_known else at_most
        rows = {
            "Model": f"{self.model}{parameters}",
            "Data": f"{choice_name(data.name, data.target.get(config.framework))}{splits}",
            "Device": f"{kind}, precision {t.precision}, strategy {self.strategy}",
            "Batch": (f"{batch * self.devices}{per_device}" if batch else "as the data yields them")
            + accumulated,
            "Steps": f"{steps}{epochs} epoch{'s'[: epochs != 1]}" if epochs < MAX_COUNT else "no limit",
        }
        return [f"{name + ':':<15}{text}" for name, text in rows.items()]

    def record(self, config: Config, plan: Plan) -> dict[str, Any]:
        """Return what run.json keeps of it."""
        return {
            "model": self.model,
            "parameters": self.parameters,
            "rows": {name: count for name, count in self.rows.items() if count},
            "device": self.device,
            "steps": plan.total_steps if plan.steps_known else None,
            "monitor": config.checkpoint.monitor,
            "mode": config.checkpoint.mode,
        }


def cpu_name() -> str:
    """Return the kind of this machine's processor, such as `cpu (x86_64)`."""
    return f"cpu ({platform.machine()})"
