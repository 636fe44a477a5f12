"""Record steps with TensorFlow's profiler; TensorBoard's plugin xprof shows its traces."""

import re
from collections import Counter
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from train_anywhere.training.profile import Operation


class TensorFlowRecording:
    """A running profile of this process; `name` is that of this rank in the names of its files."""

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
        """Do nothing: the trace has the calls of the compiled function, which may make several steps."""

    def finish(self) -> list[Operation]:
        """Stop, write the trace, and return all operations. Raises OSError, RuntimeError."""
        try:
            tf.profiler.experimental.stop()
        except tf.errors.OpError as error:
            raise RuntimeError(error.message) from error
        traces = [*self._folder.glob("plugins/profile/*/*.xplane.pb")]
        if not traces:
            raise RuntimeError("TensorFlow's profiler has written no trace")
        return read_operations(max(traces, key=lambda path: path.stat().st_mtime))


def read_operations(file: Path) -> list[Operation]:
    """Return the operations in a trace of TensorFlow: kernels of the GPUs if it has any, else operations on the CPU by type.

    Raises:
        OSError: the file can't be read.
    """
    planes = XSpace.FromString(file.read_bytes()).planes
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
