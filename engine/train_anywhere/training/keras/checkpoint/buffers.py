"""Host copies of variables, in memory that is reused for each checkpoint."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np


class Buffers:
    """Memory for one copy of some variables, allocated at the first checkpoint and reused by the next ones.

    New memory would cost more than the copy itself, since the system must map each of its pages first.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def fill(self, values: Mapping[str, Any]) -> None:
        """Copy the values of variables or arrays, by name; each call must pass the same names and shapes."""
        for name, variable in values.items():
            value = np.asarray(variable) if isinstance(variable, np.ndarray) else host_value(variable)
            if name not in self._arrays:
                self._arrays[name] = np.empty(value.shape, value.dtype)
            np.copyto(self._arrays[name], value)

    def equals(self, other: "Buffers") -> bool:
        """Return whether both hold the same bits."""
        return all(array.tobytes() == other._arrays[name].tobytes() for name, array in self._arrays.items())

    def write(self, file: Path) -> None:
        """Save the copies by name in a file for `np.load`; any thread may call this. Raises OSError if the disk fails.

        Unlike np.savez, this does not copy each array again in small chunks.
        """
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in self._arrays.items():
                header = io.BytesIO()
                np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    entry.write(header.getvalue())
                    entry.write(array.reshape(-1).view(np.uint8))


def host_value(variable: keras.Variable) -> np.ndarray:
    """Return the value of a variable on the host; on a CPU it is not copied, so it is valid only until the next step."""
    value = variable.value.read_value()
    try:
        return np.asarray(memoryview(value))
    except (ValueError, TypeError, BufferError):
        # a type that Python's buffers don't support, such as bfloat16
        return np.asarray(value)
