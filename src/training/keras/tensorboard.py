"""Metrics on their way to people: the display, metrics.csv, TensorBoard. Only rank 0 shows and writes."""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from src.checkpoints.event_files import EventFileSync
from src.config.schema import Config
from src.runs.folder import RunDir
from src.training.metrics_csv import CsvLog
from src.training.progress import Progress


class TensorBoard:
    """Event files in one folder.

    Args:
        mirror: knows the folder, and what to do where its disk refuses.
        step: optimizer steps done before; what an earlier part of the run wrote after them is taken back, so
            that a resumed run shows one curve.
    """

    def __init__(self, mirror: EventFileSync, step: int) -> None:
        self.mirror, self.step = mirror, step
        self._file: BinaryIO | None = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point of each metric's curve, on the disk when this returns."""
        points = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=points))
        self.mirror.attempt(lambda: self._write(event), self._reopen)

    def _write(self, event: Event) -> None:
        """TensorBoard's own writer of whole files has TensorFlow's errors for those of the disk."""
        file = self._file = self._file or self._open()
        RecordWriter(file).write(event.SerializeToString())
        file.flush()
        self.step = event.step

    def _open(self) -> BinaryIO:
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        file = open(self.mirror.open() / name, "xb")  # noqa: SIM115  # as long as the run
        for first in (
            Event(wall_time=time.time(), file_version="brain.Event:2"),
            Event(step=self.step + 1, session_log=SessionLog(status=SessionLog.START)),
        ):
            RecordWriter(file).write(first.SerializeToString())
        return file

    def _reopen(self) -> None:
        if self._file:
            with suppress(OSError):  # it has bytes that its disk does not take
                self._file.close()
        self._file = None


class Report:
    """The display and the files of one run.

    Args:
        progress: the display; it must be entered and left by the caller.
        step: optimizer steps done in earlier parts of the run.
        mirror: for TensorBoard's files; None: this rank writes no files.
    """

    def __init__(
        self, config: Config, run: RunDir, progress: Progress, step: int, mirror: EventFileSync | None
    ) -> None:
        self.progress = progress
        self.csv = CsvLog(run.metrics_csv) if mirror and config.monitor.csv else None
        self.board = TensorBoard(mirror, step) if mirror and config.monitor.tensorboard else None
        if self.csv:
            self.csv.resume(step)

    def write(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Write metrics to the files; `epoch` counts from 0."""
        if self.csv:
            self.csv.write(step, epoch + 1, metrics)
        if self.board:
            self.board.write(step, metrics)
