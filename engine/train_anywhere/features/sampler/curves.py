"""Write the samples of a node as TensorBoard curves, in a folder that TensorBoard shows as a run of that name."""

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_anywhere.files.ordinary import make_folder


class Curves:
    """Event files of one node.

    TensorBoard's writer is imported at the first sample. That takes 0.3 s, happens in no rank, and loads no framework. Each node needs
    its own folder: TensorBoard reads new events only from the newest file of a folder, and rank 0 writes to another one.

    Args:
        folder: folder of the node, inside the run's TensorBoard folder.
        began: Unix seconds of the first sample of all attempts, which is step 0.
    """

    def __init__(self, folder: Path, began: float) -> None:
        self.folder, self.began = folder, began
        self._writer: Any = None

    def add(self, sample: Mapping[str, float | None]) -> None:
        """Add a point for each number, at the seconds since `began`. Raises OSError if the write fails."""
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
            self._get_writer().add_event(event)
            self._writer.flush()
        except Exception:
            self._writer = None  # its thread may be dead: the next sample opens a new file
            raise

    def _get_writer(self) -> Any:
        # unless this module exists, tensorboard imports TensorFlow, if installed, for its file functions
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            make_folder(self.folder.parent)
            make_folder(self.folder)
            self._writer = EventFileWriter(str(self.folder))
        return self._writer


def tag(column: str) -> str:
    """Return the name of a curve: gpu0/use_percent for gpu0_use_percent, node/cpu_use_percent for cpu_use_percent."""
    first, _, rest = column.partition("_")
    return f"{first}/{rest}" if first.startswith("gpu") else f"node/{column}"
