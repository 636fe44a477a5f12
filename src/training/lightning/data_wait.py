"""How long the training has waited for its batches."""

import time

from lightning.pytorch.profilers import PassThroughProfiler

NEXT = "[_TrainingEpochLoop].train_dataloader_next"
"""Lightning's name for asking the loader for the next batch of the training."""


class DataWait(PassThroughProfiler):
    """A profiler that looks at one action only, so that it costs next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = self._began = 0.0

    def start(self, action_name: str) -> None:
        """The loop asks for a batch."""
        if action_name == NEXT:
            self._began = time.perf_counter()

    def stop(self, action_name: str) -> None:
        """It has one."""
        if action_name == NEXT:
            self._seconds += time.perf_counter() - self._began

    def seconds(self) -> float:
        """In all, so far."""
        return self._seconds
