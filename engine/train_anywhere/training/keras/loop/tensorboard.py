"""TensorBoard's event files, and the writer of metrics to metrics.csv, TensorBoard and loggers; only rank 0 writes."""

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
from train_anywhere.training.tracking import GuardedLogger, open_loggers


class TensorBoard:
    """TensorBoard's event files in one folder.

    Args:
        events: the folder, and the handling of disk errors.
        step: optimizer steps done before; later events of an earlier attempt are purged, so that a resumed run shows one curve.
    """

    def __init__(self, events: EventFileSync, step: int) -> None:
        self.events, self.step = events, step
        self._file: BinaryIO | None = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one point of each metric's curve; it is in the file when this returns."""
        points = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=points))
        self.events.try_write(lambda: self._write(event), self._close)

    def _write(self, event: Event) -> None:
        """Write an event. TensorBoard's own EventFileWriter would raise TensorFlow's errors instead of OSError."""
        file = self._file = self._file or self._open()
        RecordWriter(file).write(event.SerializeToString())
        file.flush()
        self.step = event.step

    def _open(self) -> BinaryIO:
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        file = open(self.events.prepare_folder() / name, "xb")  # noqa: SIM115  # stays open during the run
        for first in (
            Event(wall_time=time.time(), file_version="brain.Event:2"),
            Event(step=self.step + 1, session_log=SessionLog(status=SessionLog.START)),
        ):
            RecordWriter(file).write(first.SerializeToString())
        return file

    def _close(self) -> None:
        if self._file:
            with suppress(OSError):  # closing flushes bytes that can't be written
                self._file.close()
        self._file = None


class MetricsWriter:
    """The writer of metrics of one run.

    Args:
        config: the configuration.
        run: the run folder.
        progress: the display, which the caller enters and exits.
        step: optimizer steps done in earlier attempts.
        events: folder of TensorBoard's files; None: this rank writes no files.
        names: names of the expected metrics.

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
        names: Sequence[str] = (),
    ) -> None:
        self.progress = progress
        self.csv = CsvLog(run.metrics_csv, names) if events and config.monitor.csv else None
        self.board = TensorBoard(events, step) if events and config.monitor.tensorboard else None
        self.loggers = open_loggers(config, run, events is not None)
        refuse_loggers(self.loggers)
        if self.csv:
            self.csv.resume(step)

    def write(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Write metrics to the files and loggers; `epoch` counts from 0."""
        if self.csv:
            self.csv.write(step, epoch + 1, metrics)
        if self.board:
            self.board.write(step, metrics)
        for logger in self.loggers:
            logger.log_metrics(dict(metrics), step)

    @contextmanager
    def finalize_loggers(self, position: Position) -> Iterator[None]:
        """Close the loggers at the end of the block, with the status completed, preempted or failed."""
        status = "failed"
        try:
            yield
            status = "preempted" if position.preempted else "completed"
        finally:
            for logger in self.loggers:
                logger.finalize(status)


def refuse_loggers(loggers: Sequence[GuardedLogger]) -> None:
    """Raise ConfigError for a logger without a method `log_metrics`."""
    for tracked in loggers:
        if not callable(getattr(tracked.logger, "log_metrics", None)):
            raise ConfigError(
                f"loggers.{tracked.name} is a {type(tracked.logger).__name__}, which has no log_metrics(metrics, step)."
            )
