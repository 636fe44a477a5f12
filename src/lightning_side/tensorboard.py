"""TensorBoard files without TensorFlow."""

import sys
import types
from pathlib import Path

from lightning.pytorch.loggers import TensorBoardLogger


class TensorBoard(TensorBoardLogger):
    """Writes event files into one folder; `self.log` of the module ends up here as well.

    Args:
        folder: of the event files.
        step: where the run goes on; what an earlier part of it wrote after this step is taken back, so that a
            resumed run shows one curve.
    """

    def __init__(self, folder: Path, step: int) -> None:
        # tensorboard loads TensorFlow for its file functions where it is installed, unless this module exists
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
        super().__init__(folder, name="", version="", default_hp_metric=False, purge_step=step + 1)

    def save(self) -> None:
        """Write out what is buffered, but no hparams.yaml: the run folder has its config.yaml."""
        if self._experiment is not None:
            self.experiment.flush()

    def finalize(self, status: str) -> None:
        """The Trainer calls this after fit, and the test still has to be written: the file stays open."""
        self.save()
