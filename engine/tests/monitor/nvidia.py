"""A stand-in for pynvml, with four GPUs, of which one answers not all questions; None is a lost one."""

import os
from pathlib import Path

from train_anywhere.files import with_engine

NVML = """
from types import SimpleNamespace

NVML_TEMPERATURE_GPU = 0

class NVMLError(Exception): ...

# use in percent, memory in MiB, milliwatts, degrees Celsius
GPUS = {gpus}

def known(value):
    if value is None:
        raise NVMLError
    return value

def nvmlInit(): ...
def nvmlDeviceGetCount(): return len(GPUS)
def nvmlDeviceGetHandleByIndex(index): return known(GPUS[index]) and index
def nvmlDeviceGetUUID(index): return f"GPU-4f6ba1f1-7d14-1a3c-8a55-d1d0e1c3a00{{index}}"
def nvmlDeviceGetName(index): return "NVIDIA A100-SXM4-80GB"
def nvmlDeviceGetMemoryInfo(index): return SimpleNamespace(total=80 << 30, used=GPUS[index][1] << 20)
def nvmlDeviceGetUtilizationRates(index): return SimpleNamespace(gpu=known(GPUS[index][0]))
def nvmlDeviceGetPowerUsage(index): return known(GPUS[index][2])
def nvmlDeviceGetTemperature(index, sensor): return GPUS[index][3]
"""

GPUS = [(87, 61234, 301250, 54), (0, 4, 62900, 31), (None, 4096, None, 33), (12, 4096, 70000, 35)]


def fake_nvml(folder: Path, gpus: object = GPUS) -> Path:
    """Write the module and return its folder, for PYTHONPATH."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pynvml.py").write_text(NVML.format(gpus=gpus))
    return folder


HURRY = """
import builtins, importlib, sys
found = builtins.__import__

def importing(name, *arguments, **options):
    module = found(name, *arguments, **options)
    if name == "train_anywhere.features":
        builtins.__import__ = found
        idle = importlib.import_module(name + ".sampler")
        idle.WARN_MINUTES, idle.IdleWatch.every_seconds = {warn}, 0.2
    return module

if "train_anywhere.features.node" in sys.orig_argv:
    builtins.__import__ = importing
"""


def idle_gpus(folder: Path, warn: float) -> dict[str, str]:
    """Return the environment of a run on a stand-in's two idle GPUs and a monitor that waits less."""
    fake_nvml(folder, [(0, 4096, 62900, 31)] * 2)
    (folder / "sitecustomize.py").write_text(HURRY.format(warn=warn))
    return {"PYTHONPATH": f"{folder}{os.pathsep}{with_engine()['PYTHONPATH']}"}
