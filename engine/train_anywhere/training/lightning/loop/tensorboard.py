"""TensorBoard files without a second framework in the process."""

import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loggers.logger import DummyExperiment
from lightning.pytorch.utilities import rank_zero_only

from train_anywhere.checkpoints.disk.event_files import EventFileSync

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(TensorBoardLogger):
    """Writes event files into one folder; `self.log` of the module ends up here as well.

    Args:
        events: knows the folder, and what to do if its disk fails.
        step: optimizer steps done before; later events of an earlier attempt are purged, so that a resumed run shows
            one curve.
    """

    def __init__(self, events: EventFileSync, step: int) -> None:
        # tensorboard loads a framework of its own for its file functions if that is installed, unless this module exists
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
        super().__init__(events.target, name="", version="", default_hp_metric=False)
        self.events, self.step = events, step
        self._experiment: SummaryWriter | None = None

    @property
    @rank_zero_experiment
    def experiment(self) -> "SummaryWriter | DummyExperiment":
        """The writer of the file in use, for `add_image` and the like; one that does nothing while the disk fails."""
        if self._experiment is None:
            self.events.attempt(self._open, self._reopen)
        return self._experiment or DummyExperiment()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """One point of each metric's curve, on the disk when this returns."""

        def write() -> None:
            TensorBoardLogger.log_metrics(self, metrics, step)
            self.experiment.flush()
            self.step = max(self.step, step or 0)

        self.events.attempt(write, self._reopen)

    @rank_zero_only
    def save(self) -> None:
        """Write out what is buffered, but no hparams.yaml: the run folder has its config.yaml."""
        if self._experiment is not None:
            self.events.attempt(self.experiment.flush, self._reopen)

    def finalize(self, status: str) -> None:
        """The Trainer calls this after fit, and the test still has to be written: the file stays open."""
        self.save()

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._experiment = SummaryWriter(str(self.events.open()), purge_step=self.step + 1)

    def _reopen(self) -> None:
        self._experiment = None
