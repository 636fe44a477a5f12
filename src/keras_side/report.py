"""Metrics on their way to people: the display, metrics.csv, TensorBoard. Only rank 0 shows and writes."""

import time
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from src.metrics_log import CsvLog
from src.progress import Progress
from src.rundir import RunDir
from src.schema import Config


class TensorBoard:
    """Event files in one folder.

    Args:
        folder: of the event files.
        step: optimizer steps done before; what an earlier part of the run wrote after them is taken back, so
            that a resumed run shows one curve.
    """

    def __init__(self, folder: str, step: int) -> None:
        self.writer = EventFileWriter(folder)
        if step:
            self.writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point of each metric's curve."""
        points = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self.writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=points)))
        self.writer.flush()


class Report:
    """The display and the files of one run.

    Args:
        progress: the display; it must be entered and left by the caller.
        step: optimizer steps done in earlier parts of the run.
        write: whether this rank writes files.
    """

    def __init__(self, config: Config, run: RunDir, progress: Progress, step: int, write: bool) -> None:
        self.progress = progress
        self.csv = CsvLog(run.metrics_csv) if write and config.monitor.csv else None
        self.board = TensorBoard(str(run.tensorboard), step) if write and config.monitor.tensorboard else None
        if self.csv:
            self.csv.resume(step)

    def write(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Write metrics to the files; `epoch` counts from 0."""
        if self.csv:
            self.csv.write(step, epoch + 1, metrics)
        if self.board:
            self.board.write(step, metrics)
