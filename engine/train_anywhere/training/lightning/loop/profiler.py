"""Record steps with torch's profiler; TensorBoard's plugin torch-tb-profiler, Perfetto and Chrome show its traces."""

import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from train_anywhere.training.profile import Operation


class TorchRecording:
    """A running profile of this thread's operators and of the GPU's kernels; `name` starts the names of its files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = folder / name
        used = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._profile = profile(activities=used)
        self._profile.start()

    def step(self) -> None:
        """Mark the end of a training step."""
        self._profile.step()

    def finish(self) -> list[Operation]:
        """Stop, write the trace, and return all operations. Raises OSError, RuntimeError."""
        self._profile.stop()
        # the form of this name is that of torch.profiler.tensorboard_trace_handler: <worker>.<time>.pt.trace.json
        self._profile.export_chrome_trace(f"{self._file}.{time.time_ns()}.pt.trace.json")
        found = self._profile.key_averages()
        gpu = any(one.self_device_time_total for one in found)
        times = {one.key: one.self_device_time_total if gpu else one.self_cpu_time_total for one in found}
        return [
            Operation(one.key, one.count, times[one.key] / 1000)
            for one in found
            if "ProfilerStep" not in one.key
        ]
