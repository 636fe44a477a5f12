"""The job's GPUs on this node and what they do, asked of NVML by `pynvml`, or of `nvidia-smi` where that is not installed."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from train_anywhere.distributed.devices import listed_gpus

MIB, GIB = 1 << 20, 1 << 30

ASKED = "index,uuid,name,memory.total,utilization.gpu,memory.used,power.draw,temperature.gpu"
"""Of nvidia-smi, which answers in %, MiB, W and degrees Celsius: `nvidia-smi --help-query-gpu`."""

ANSWER_S = 10.0
"""Seconds that nvidia-smi may take: it waits for a GPU that does not answer."""


@dataclass(frozen=True)
class Gpu:
    """One GPU, by its number on this node, and what it does now; None where the driver does not say (MIG, a vGPU, a lost GPU)."""

    index: int
    uuid: str
    name: str
    memory_gib: float | None = None
    use_percent: float | None = None
    memory_used_gib: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


def reader() -> Callable[[], list[Gpu]]:
    """A function that returns the GPUs allotted to this job; on a machine without NVIDIA's driver always none."""
    ask = _nvml() or _nvidia_smi()
    if ask is None:
        return list
    return lambda: allotted(ask(), os.environ)


def allotted(gpus: list[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES names, by number or UUID; all, where it is not set or names none of them.

    Schedulers set it for the processes of a job. Where they also keep other GPUs out of sight (Slurm with ConstrainDevices), the
    driver and CUDA_VISIBLE_DEVICES count the same from 0: https://slurm.schedmd.com/gres.html#GPU_Management
    """
    listed = listed_gpus(environ)
    if listed is None:
        return gpus
    return [g for g in gpus if str(g.index) in listed or g.uuid in listed] or (gpus if listed else [])


def _nvml() -> Callable[[], list[Gpu]] | None:
    """NVML of the driver: no process is started, and no context on a GPU. None where it can't be used."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver, or one of another version
        return None
    return lambda: [_of_nvml(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount())]


def _of_nvml(nvml: Any, index: int) -> Gpu:
    def asked(question: Callable[..., Any], *more: Any) -> Any:
        try:
            return question(handle, *more)
        except nvml.NVMLError:
            return None

    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:
        return Gpu(index, "", "")
    memory, use = asked(nvml.nvmlDeviceGetMemoryInfo), asked(nvml.nvmlDeviceGetUtilizationRates)
    milliwatts = asked(nvml.nvmlDeviceGetPowerUsage)
    return Gpu(
        index,
        _text(asked(nvml.nvmlDeviceGetUUID)),
        _text(asked(nvml.nvmlDeviceGetName)),
        memory_gib=memory and memory.total / GIB,
        use_percent=use and float(use.gpu),
        memory_used_gib=memory and memory.used / GIB,
        power_w=None if milliwatts is None else milliwatts / 1000,
        temperature_c=asked(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
    )


def _text(answer: str | bytes | None) -> str:
    """Older versions of pynvml return bytes."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer or ""


def _nvidia_smi() -> Callable[[], list[Gpu]] | None:
    """The driver's own program. None where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={ASKED}", "--format=csv,noheader,nounits"]

    def ask() -> list[Gpu]:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S
            )
        except subprocess.TimeoutExpired:
            return []
        return [gpu for line in done.stdout.splitlines() if (gpu := _of_line(line))]

    return ask


def _of_line(line: str) -> Gpu | None:
    """One row of nvidia-smi; None for anything else that it may print."""
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(ASKED.split(",")) or not words[0].isdigit():
        return None
    total, use, used, power, temperature = (_number(word) for word in words[3:])
    return Gpu(
        int(words[0]),
        words[1],
        words[2],
        memory_gib=total and total * MIB / GIB,
        use_percent=use,
        memory_used_gib=None if used is None else used * MIB / GIB,
        power_w=power,
        temperature_c=temperature,
    )


def _number(word: str) -> float | None:
    """None for [N/A], [Not Supported], [Unknown Error], [GPU is lost]."""
    try:
        return float(word)
    except ValueError:
        return None
