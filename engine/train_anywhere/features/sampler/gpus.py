"""Read the state of the job's GPUs on this node from NVML with `pynvml`, or from `nvidia-smi` if that is not installed."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from train_anywhere.distributed.layout import cuda_visible_devices

MIB, GIB = 1 << 20, 1 << 30

FIELDS = "index,uuid,name,memory.total,utilization.gpu,memory.used,power.draw,temperature.gpu"
"""Fields to query from nvidia-smi, in %, MiB, W and degrees Celsius: see `nvidia-smi --help-query-gpu`."""

ANSWER_S = 10.0
"""Longest run of nvidia-smi in seconds: it hangs if a GPU does not answer."""


@dataclass(frozen=True)
class Gpu:
    """State of one GPU, by its number on this node. Values are None if the driver does not report them (MIG, a vGPU, a lost GPU)."""

    index: int
    uuid: str
    name: str
    memory_gib: float | None = None
    use_percent: float | None = None
    memory_used_gib: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


def reader() -> Callable[[], list[Gpu]]:
    """Return a function that returns the GPUs of this job; without NVIDIA's driver it always returns an empty list."""
    ask = _nvml() or _nvidia_smi()
    if ask is None:
        return list
    return lambda: visible_gpus(ask(), os.environ)


def visible_gpus(gpus: list[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, by number or UUID; all if it is not set or matches none.

    Schedulers set it for the processes of a job. If they also hide other GPUs (Slurm with ConstrainDevices), the driver and
    CUDA_VISIBLE_DEVICES use the same numbers, from 0: https://slurm.schedmd.com/gres.html#GPU_Management
    """
    listed = cuda_visible_devices(environ)
    if listed is None:
        return gpus
    return [g for g in gpus if str(g.index) in listed or g.uuid in listed] or (gpus if listed else [])


def _nvml() -> Callable[[], list[Gpu]] | None:
    """Return a function that reads GPUs from NVML, which starts no process and no GPU context; None if it can't be used."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver, or a driver of another version
        return None
    return lambda: [_read_nvml(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount())]


def _read_nvml(nvml: Any, index: int) -> Gpu:
    def query(function: Callable[..., Any], *more: Any) -> Any:
        try:
            return function(handle, *more)
        except nvml.NVMLError:
            return None

    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:
        return Gpu(index, "", "")
    memory, use = query(nvml.nvmlDeviceGetMemoryInfo), query(nvml.nvmlDeviceGetUtilizationRates)
    milliwatts = query(nvml.nvmlDeviceGetPowerUsage)
    return Gpu(
        index,
        _decode(query(nvml.nvmlDeviceGetUUID)),
        _decode(query(nvml.nvmlDeviceGetName)),
        memory_gib=memory and memory.total / GIB,
        use_percent=use and float(use.gpu),
        memory_used_gib=memory and memory.used / GIB,
        power_w=None if milliwatts is None else milliwatts / 1000,
        temperature_c=query(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
    )


def _decode(answer: str | bytes | None) -> str:
    """Return an answer of pynvml as a string; older versions return bytes."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer or ""


def _nvidia_smi() -> Callable[[], list[Gpu]] | None:
    """Return a function that reads GPUs from nvidia-smi; None if it is not installed."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]

    def ask() -> list[Gpu]:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S
            )
        except subprocess.TimeoutExpired:
            return []
        return [gpu for line in done.stdout.splitlines() if (gpu := _parse_line(line))]

    return ask


def _parse_line(line: str) -> Gpu | None:
    """Return the GPU in a row of nvidia-smi; None for other output, such as an error."""
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(FIELDS.split(",")) or not words[0].isdigit():
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
    """Return a number, or None for [N/A], [Not Supported], [Unknown Error] and [GPU is lost]."""
    try:
        return float(word)
    except ValueError:
        return None
