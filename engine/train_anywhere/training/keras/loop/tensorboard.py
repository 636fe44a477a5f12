"""TensorBoard's event files and traces."""

import os
import re
import socket
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from train_anywhere.training.event_files import EventFiles
from train_anywhere.training.profile import Operation


class TensorBoard:
    """TensorBoard's event files. Events of an earlier attempt after its optimizer step `step` are purged: a resumed run shows one curve."""

    def __init__(self, events: EventFiles, step: int) -> None:
        self.events, self.step = events, step
        self._file: BinaryIO | None = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one point of each metric's curve, and flush it."""
        points = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=points))
        self.events.try_write(lambda: self._write(event), self._close)

    def _write(self, event: Event) -> None:
        """Write an event. TensorBoard's own writer would raise TensorFlow's errors."""
        events = [event]
        if self._file is None:
            name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
            self._file = open(self.events.prepare_folder() / name, "xb")  # noqa: SIM115  # stays open during the run
            purge = Event(step=self.step + 1, session_log=SessionLog(status=SessionLog.START))
            events = [Event(wall_time=time.time(), file_version="brain.Event:2"), purge, event]
        for one in events:
            RecordWriter(self._file).write(one.SerializeToString())
        self._file.flush()
        self.step = event.step

    def _close(self) -> None:
        if self._file:
            with suppress(OSError):  # closing flushes bytes that can't be written
                self._file.close()
        self._file = None


class TensorFlowRecording:
    """A running profile of this process. Its files have the `name` of this rank."""

    def __init__(self, folder: Path, name: str) -> None:
        # one folder for each rank: TensorFlow names files by host only
        self._folder = folder / name
        # level 3 also records each operation on the CPU, which takes longer
        level = 2 if tf.config.list_physical_devices("GPU") else 3
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=level)
        try:
            tf.profiler.experimental.start(str(self._folder), options)
        except tf.errors.OpError as error:
            raise RuntimeError(error.message) from error

    def step(self) -> None:
        """Do nothing: the trace has the calls of the compiled function."""

    def finish(self) -> list[Operation]:
        """Stop, write the trace, and return all operations, kernels of the GPUs or types on the CPU. Raises OSError, RuntimeError."""
        try:
            tf.profiler.experimental.stop()
        except tf.errors.OpError as error:
            raise RuntimeError(error.message) from error
        traces = [*self._folder.glob("plugins/profile/*/*.xplane.pb")]
        if not traces:
            raise RuntimeError("TensorFlow's profiler has written no trace")
        newest = max(traces, key=lambda path: path.stat().st_mtime)
        planes = XSpace.FromString(newest.read_bytes()).planes
        gpus = [plane for plane in planes if plane.name.startswith("/device:GPU")]
        calls, picoseconds = Counter[str](), Counter[str]()
        for plane in gpus or planes:
            for event in (event for line in plane.lines for event in line.events):
                name = plane.event_metadata[event.metadata_id].name
                if not gpus:  # an operation is `model/dense/MatMul:MatMul`; the other events are TensorFlow's own work around them
                    found = re.fullmatch(r"[^\s:]+:(\w+)", name)
                    name = found[1] if found else ""
                if name:
                    calls[name] += 1
                    picoseconds[name] += event.duration_ps
        return [Operation(name, calls[name], picoseconds[name] / 1e9) for name in calls]
