"""The GPUs of this machine, counted without loading a framework."""

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path


def visible_gpus(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> int:
    """Return the number of GPUs that CUDA would show: NVIDIA device files, limited by CUDA_VISIBLE_DEVICES."""
    files = sum(bool(re.fullmatch(r"nvidia\d+", p.name)) for p in devices.iterdir())
    listed = cuda_visible_devices(environ)
    return files if listed is None else min(files, len(listed))


def cuda_visible_devices(environ: Mapping[str, str]) -> list[str] | None:
    """Return the numbers or UUIDs in CUDA_VISIBLE_DEVICES; None if it is not set."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return None
    return [d.strip() for d in listed.split(",") if d.strip() not in ("", "-1", "NoDevFiles")]


def apple_gpu_problem() -> str:
    """Return the message for trainer.accelerator=mps on a machine without an Apple GPU; "" on a Mac with Apple silicon."""
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return ""
    return "trainer.accelerator=mps needs a Mac with Apple silicon; use trainer.accelerator=auto or cpu."


def no_gpu_message(seen_by: str) -> str:
    """Return the message for trainer.accelerator=gpu on a machine without GPUs; `seen_by` is what looked for them."""
    return f"trainer.accelerator=gpu, but {seen_by} sees no GPU here; use trainer.accelerator=auto or cpu."
