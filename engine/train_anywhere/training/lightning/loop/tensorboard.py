"""TensorBoard's events, without loading a second framework, and traces of the profiler."""

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loggers.logger import DummyExperiment
from lightning.pytorch.utilities import rank_zero_only
from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler

from train_anywhere.training.event_files import EventFiles
from train_anywhere.training.profile import Operation

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

# tensorboard would load TensorFlow for its file functions, if installed, unless this module exists
sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))


class TensorBoard(TensorBoardLogger):
    """Writes event files into one folder, also for the values of `self.log`.

    Args:
        step: optimizer steps done before. Later events of an earlier attempt are purged, so a resumed run shows one curve.
    """

    def __init__(self, events: EventFiles, step: int) -> None:
        super().__init__(events.folder.parent, name="", version="", default_hp_metric=False)
        self.events, self.step = events, step
        self._experiment: SummaryWriter | None = None

    version = property(lambda self: 0)  # a number, as by default in Lightning
    log_dir = property(lambda self: str(self.events.folder.parent))  # the run folder, for files of user code

    @property
    @rank_zero_experiment
    def experiment(self) -> "SummaryWriter | DummyExperiment":
        """The writer of the current file, for `add_image` etc. A dummy while the disk fails."""
        if self._experiment is None:
            self.events.try_write(self._open, self._close)
        return self._experiment or DummyExperiment()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write one point of each metric's curve, and flush it to disk."""

        def write() -> None:
            TensorBoardLogger.log_metrics(self, metrics, step)
            self.experiment.flush()
            self.step = max(self.step, step or 0)

        self.events.try_write(write, self._close)

    @rank_zero_only
    def save(self) -> None:
        """Flush the buffer. No hparams.yaml is written, because the run folder has its config.yaml."""
        if self._experiment is not None:
            self.events.try_write(self.experiment.flush, self._close)

    def finalize(self, status: str) -> None:
        """Flush but keep the file open: the Trainer calls this before the test."""
        self.save()

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._experiment = SummaryWriter(str(self.events.prepare_folder()), purge_step=self.step + 1)

    def _close(self) -> None:
        self._experiment = None


class TorchRecording:
    """A running profile of operators and GPU kernels. Its files start with `name`."""

    def __init__(self, folder: Path, name: str) -> None:
        used = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        write = tensorboard_trace_handler(str(folder), name)
        self._profile = profile(activities=used, on_trace_ready=write)
        self._profile.start()

    def step(self) -> None:
        """Mark the end of a training step."""
        self._profile.step()

    def finish(self) -> list[Operation]:
        """Stop, write the trace, and return all operations. Raises OSError, RuntimeError."""
        self._profile.stop()
        found = self._profile.key_averages()
        gpu = any(one.self_device_time_total for one in found)
        times = {one.key: one.self_device_time_total if gpu else one.self_cpu_time_total for one in found}
        kept = (one for one in found if "ProfilerStep" not in one.key)
        return [Operation(one.key, one.count, times[one.key] / 1000) for one in kept]
