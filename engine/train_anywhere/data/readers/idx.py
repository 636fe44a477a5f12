"""A reader of IDX files, the format of MNIST (http://yann.lecun.com/exdb/mnist), plain or gzip.

A file has two zero bytes, a type code, the number of dimensions, each dimension as a big-endian 32-bit number, then the values.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from train_anywhere.errors import DataError

if TYPE_CHECKING:
    import numpy as np

UNSIGNED_BYTE = 8


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Return the uint8 array of an IDX file; raise DataError if it is damaged or has another number of dimensions."""
    import numpy as np

    content = _read_bytes(path)
    shape = _parse_shape(path, content, dimensions)
    header = 4 + 4 * dimensions
    announced, present = math.prod(shape), len(content) - header
    if announced != present:
        state = "truncated" if present < announced else "damaged"
        size = "x".join(map(str, shape))
        raise DataError(
            f"{path} is {state}: its header announces {size} = {announced} values, but it has {present}; "
            "fetch it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def read_header(path: Path, dimensions: int) -> tuple[int, ...]:
    """Return the size of each dimension, from the header only and without numpy; raise DataError if the header is wrong."""
    return _parse_shape(path, _read_bytes(path, 4 + 4 * dimensions), dimensions)


def _parse_shape(path: Path, content: bytes, dimensions: int) -> tuple[int, ...]:
    header = 4 + 4 * dimensions
    magic = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    if content[:4] != magic:
        raise DataError(
            f"{path} is not an IDX file of {dimensions}-dimensional unsigned bytes: it starts with "
            f"{content[:4].hex(' ') or 'nothing'} instead of {magic.hex(' ')}; put the original file there."
        )
    if len(content) < header:
        raise DataError(f"{path} is truncated: it ends inside its {header}-byte header; fetch it again.")
    return struct.unpack(f">{dimensions}I", content[4:header])


def _read_bytes(path: Path, size: int = -1) -> bytes:
    """Return the first `size` bytes of the file (-1: all), unpacked if its name ends in .gz; raise DataError if it can't be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is truncated or not a gzip file ({error}); fetch it again.") from error
    except OSError as error:
        raise DataError(
            f"{path} can't be read ({error.strerror}): check that it is a file you may read."
        ) from error
