"""The samples of a node as curves in TensorBoard: event files in a folder of its own, which TensorBoard shows as a run of that name."""

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_anywhere.files.ordinary import make_folder


class Curves:
    """Event files of one node. TensorBoard's own writer is imported at the first sample: 0.3 s, in no rank, and without a framework.

    A folder of its own, because TensorBoard reads on only in the newest file of a folder, and rank 0 has one in its own.

    Args:
        folder: in the run's folder for TensorBoard.
        began: unix seconds of the first sample of all attempts, which is step 0.
    """

    def __init__(self, folder: Path, began: float) -> None:
        self.folder, self.began = folder, began
        self._writer: Any = None

    def add(self, sample: Mapping[str, float | None]) -> None:
        """One point for each number, at the second since `began`. Raises OSError where the disk refuses."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [
            Summary.Value(tag=tag(name), simple_value=value)
            for name, value in sample.items()
            if value is not None and name != "time"
        ]
        now = float(sample["time"] or 0.0)
        event = Event(wall_time=now, step=int(now - self.began), summary=Summary(value=points))
        try:
            self._open().add_event(event)
            self._writer.flush()
        except Exception:
            self._writer = None  # its thread may have ended: the next sample gets a new file
            raise

    def _open(self) -> Any:
        # tensorboard loads a whole framework for its file functions if it is installed, unless this module exists
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            make_folder(self.folder.parent)
            make_folder(self.folder)
            self._writer = EventFileWriter(str(self.folder))
        return self._writer


def tag(column: str) -> str:
    """The name of a curve: gpu0_use_percent is gpu0/use_percent, cpu_use_percent is node/cpu_use_percent."""
    first, _, rest = column.partition("_")
    return f"{first}/{rest}" if first.startswith("gpu") else f"node/{column}"
