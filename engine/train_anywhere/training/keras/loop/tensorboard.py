"""TensorBoard files, and the writer that feeds the display, metrics.csv and TensorBoard; only rank 0 shows and writes."""

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from train_anywhere.checkpoints.disk.event_files import EventFileSync
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.keras.checkpoint.position import Position
from train_anywhere.training.reporting.metrics_csv import CsvLog
from train_anywhere.training.reporting.progress import Progress
from train_anywhere.training.tracking import Tracked, open_loggers


class TensorBoard:
    """Event files in one folder.

    Args:
        events: knows the folder, and what to do if its disk fails.
        step: optimizer steps done before; later events of an earlier attempt are purged, so that a resumed run shows
            one curve.
    """

    def __init__(self, events: EventFileSync, step: int) -> None:
        self.events, self.step = events, step
        self._file: BinaryIO | None = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point of each metric's curve, on the disk when this returns."""
        points = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=points))
        self.events.attempt(lambda: self._write(event), self._reopen)

    def _write(self, event: Event) -> None:
        """TensorBoard's own writer of whole files would raise TensorFlow's errors for those of the disk."""
        file = self._file = self._file or self._open()
        RecordWriter(file).write(event.SerializeToString())
        file.flush()
        self.step = event.step

    def _open(self) -> BinaryIO:
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        file = open(self.events.open() / name, "xb")  # noqa: SIM115  # as long as the run
        for first in (
            Event(wall_time=time.time(), file_version="brain.Event:2"),
            Event(step=self.step + 1, session_log=SessionLog(status=SessionLog.START)),
        ):
            RecordWriter(file).write(first.SerializeToString())
        return file

    def _reopen(self) -> None:
        if self._file:
            with suppress(OSError):  # it holds bytes that the disk refuses
                self._file.close()
        self._file = None


class MetricsWriter:
    """The display and the files of one run.

    Args:
        progress: the display; it must be entered and left by the caller.
        step: optimizer steps done in earlier attempts.
        events: for TensorBoard's files; None: this rank writes no files.
        known: names of metrics.

    Raises:
        ConfigError: a logger has no `log_metrics(metrics, step)`.
    """

    def __init__(
        self,
        config: Config,
        run: RunDir,
        progress: Progress,
        step: int,
        events: EventFileSync | None,
        known: Sequence[str] = (),
    ) -> None:
        self.progress = progress
        self.csv = CsvLog(run.metrics_csv, known) if events and config.monitor.csv else None
        self.board = TensorBoard(events, step) if events and config.monitor.tensorboard else None
        seen = self.csv.held() if self.csv else ()  # before it is cut back
        self.loggers = open_loggers(config, run, events is not None, step, seen)
        refuse_loggers(self.loggers)
        if self.csv:
            self.csv.resume(step)

    def write(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Write metrics to the files; `epoch` counts from 0."""
        if self.csv:
            self.csv.write(step, epoch + 1, metrics)
        if self.board:
            self.board.write(step, metrics)
        for logger in self.loggers:
            logger.log_metrics(dict(metrics), step)

    @contextmanager
    def finishing(self, position: Position) -> Iterator[None]:
        """Within, metrics are written; at its end the further loggers learn how it ended."""
        status = "failed"
        try:
            yield
            status = "preempted" if position.preempted else "completed"
        finally:
            for logger in self.loggers:
                logger.finalize(status)


def refuse_loggers(loggers: Sequence[Tracked]) -> None:
    """Raise ConfigError for an object that can't be given metrics."""
    for tracked in loggers:
        if not callable(getattr(tracked.logger, "log_metrics", None)):
            raise ConfigError(
                f"loggers.{tracked.name} is a {type(tracked.logger).__name__}, which has no log_metrics(metrics, step)."
            )
