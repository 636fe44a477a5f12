"""Host copies of variables, in memory that is kept from one checkpoint to the next."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np


class Buffers:
    """Memory for one copy of some variables: made at the first checkpoint, and filled again at each of the next.

    New memory would cost more than the copy: the system must provide each of its pages first.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def fill(self, values: Mapping[str, Any]) -> None:
        """Copy the values of variables, or arrays, by name; the same ones each time."""
        for name, variable in values.items():
            value = np.asarray(variable) if isinstance(variable, np.ndarray) else host_value(variable)
            if name not in self._arrays:
                self._arrays[name] = np.empty(value.shape, value.dtype)
            np.copyto(self._arrays[name], value)

    def same(self, other: "Buffers") -> bool:
        """Return whether both hold the same bits."""
        return all(array.tobytes() == other._arrays[name].tobytes() for name, array in self._arrays.items())

    def write(self, file: Path) -> None:
        """Save the copies by their names, as `np.load` reads them. Any thread may call it.

        np.savez would copy each array once more, in small parts. Raises OSError if the disk fails.
        """
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in self._arrays.items():
                header = io.BytesIO()
                np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    entry.write(header.getvalue())
                    entry.write(array.reshape(-1).view(np.uint8))


def host_value(variable: keras.Variable) -> np.ndarray:
    """The value of a variable on the host; on a CPU without a copy, so it holds only until the next step."""
    value = variable.value.read_value()
    try:
        return np.asarray(memoryview(value))
    except (ValueError, TypeError, BufferError):  # a type that Python's buffers don't know, such as bfloat16
        return np.asarray(value)
