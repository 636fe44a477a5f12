"""How many devices and ranks a run has on this machine, found without loading a framework."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from src.config.schema import Config
from src.config.strategies import SUPPORTED, resolve_strategy


def visible_gpus(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> int:
    """GPUs that CUDA would show: those that CUDA_VISIBLE_DEVICES lists, else the NVIDIA device files."""
    here = sum(bool(re.fullmatch(r"nvidia\d+", p.name)) for p in devices.iterdir())
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return here
    return min(here, len([d for d in listed.split(",") if d.strip() not in ("", "-1", "NoDevFiles")]))


def no_gpu(seen_by: str) -> str:
    """The message for trainer.accelerator=gpu on a machine without GPUs.

    Args:
        seen_by: the framework that looked for GPUs.
    """
    return f"trainer.accelerator=gpu, but {seen_by} sees no GPU here; use trainer.accelerator=auto or cpu."


def local_devices(config: Config) -> int:
    """Devices a run uses on this machine: `trainer.devices`; `auto` means all GPUs, or one CPU process."""
    wanted = config.trainer.total_devices or config.trainer.devices
    if wanted != "auto":
        return wanted
    return 1 if config.trainer.accelerator == "cpu" else max(1, visible_gpus())


def local_ranks(config: Config) -> int:
    """Processes a run starts on this machine: one per device, or one for all if the strategy works that way."""
    devices = local_devices(config)
    support = SUPPORTED[config.framework][resolve_strategy(config, devices, nodes=1)]
    return devices if support.ranks else 1
