"""The GPUs of this machine, counted without loading a framework."""

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path


def visible_gpus(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> int:
    """GPUs that CUDA would show: those that CUDA_VISIBLE_DEVICES lists, else the NVIDIA device files."""
    here = sum(bool(re.fullmatch(r"nvidia\d+", p.name)) for p in devices.iterdir())
    listed = listed_gpus(environ)
    return here if listed is None else min(here, len(listed))


def listed_gpus(environ: Mapping[str, str]) -> list[str] | None:
    """The numbers or UUIDs in CUDA_VISIBLE_DEVICES; None where it is not set."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return None
    return [d.strip() for d in listed.split(",") if d.strip() not in ("", "-1", "NoDevFiles")]


def no_apple_gpu() -> str:
    """Return what to do on a machine without the GPU that trainer.accelerator=mps asks for; "" on a Mac with Apple silicon."""
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return ""
    return "trainer.accelerator=mps needs a Mac with Apple silicon; use trainer.accelerator=auto or cpu."


def no_gpu(seen_by: str) -> str:
    """The message for trainer.accelerator=gpu on a machine without GPUs.

    Args:
        seen_by: the framework that looked for GPUs.
    """
    return f"trainer.accelerator=gpu, but {seen_by} sees no GPU here; use trainer.accelerator=auto or cpu."
