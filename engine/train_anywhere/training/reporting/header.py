"""The lines at the start of a run, and the peak speed of chips."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
            "Model": f"{self.model}{self._parameters()}",
            "Data": f"{choice_name(data.name, data.target.get(config.framework))}{splits}",
            "Device": f"{kind}, precision {t.precision}, strategy {self.strategy}",
            "Batch": (f"{batch * self.devices}{per_device}" if batch else "as the data yields them")
            + accumulated,
            "Steps": f"{steps}{epochs} epoch{'s'[: epochs != 1]}" if epochs < MAX_COUNT else "no limit",
        }
        return [f"{name + ':':<15}{text}" for name, text in rows.items()]

    def _parameters(self) -> str:
        if self.parameters is None:
            return ""
        frozen = f", {self.trained:,} trained" if self.trained != self.parameters else ""
        return f", {self.parameters:,} parameters{frozen}"

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


Precision = Literal["float32", "tf32", "16"]


TFLOPS: dict[str, dict[Precision, float]] = {
    "H200": {"float32": 67, "tf32": 494.7, "16": 989.5},
    "GH200": {"float32": 67, "tf32": 494.7, "16": 989.5},
    "H100": {"float32": 67, "tf32": 494.7, "16": 989.5},
    "H100 PCIe": {"float32": 51, "tf32": 378, "16": 756},
    "H100 NVL": {"float32": 60, "tf32": 417.5, "16": 835.5},
    "A100": {"float32": 19.5, "tf32": 156, "16": 312},
    "A40": {"float32": 37.4, "tf32": 74.8, "16": 149.7},
    "A10": {"float32": 31.2, "tf32": 62.5, "16": 125},
    "L40S": {"float32": 91.6, "tf32": 183, "16": 362},
    "L4": {"float32": 30.3, "tf32": 60, "16": 121},
    "T4": {"float32": 8.1, "16": 65},
    "V100": {"float32": 15.7, "16": 125},
    "V100 PCIe": {"float32": 14, "16": 112},
}
"""Dense peaks in 10^12 operations per second from NVIDIA's data sheet of each chip (https://resources.nvidia.com, "data sheet").

Values that a data sheet marks with a star include sparsity and are halved here. "16" is bfloat16 and float16; on V100 and T4 only float16.
"""


NO_BFLOAT16 = ("V100", "V100 PCIe", "T4")


def peak_flops(chip: str, precision: str, tf32: bool = False) -> float | None:
    """Return the peak of multiplications and additions per second. None for an unknown chip.

    `chip` is the driver's name, such as "NVIDIA A100-SXM4-80GB". With `tf32` float32 matrices are multiplied in TF32 (19 bits).
    """
    words = chip.upper().replace("-", " ").split()  # of "NVIDIA H100 80GB HBM3" or "Tesla V100-PCIE-16GB"
    family = next((name for name in TFLOPS if " " not in name and name.upper() in words), None)
    kinds = {"PCIE": f"{family} PCIe", "NVL": f"{family} NVL"}
    name = next((kinds[word] for word in words if kinds.get(word) in TFLOPS), family)
    no_bfloat16 = precision.startswith("bf16") and name in NO_BFLOAT16
    if name is None or "MIG" in words or no_bfloat16 or precision == "64-true":
        return None
    kind: Precision = (
        "16" if not precision.startswith("32") else "tf32" if tf32 and "tf32" in TFLOPS[name] else "float32"
    )
    return TFLOPS[name][kind] * 1e12
