"""Reading IDX files, the format of MNIST (described at http://yann.lecun.com/exdb/mnist): plain or gzip.

Two zero bytes, a type code, the number of dimensions, each dimension as a big-endian 32-bit number, then the
values.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from src.errors import DataError

UNSIGNED_BYTE = 8


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of an IDX file with that number of dimensions. Raises DataError naming the file."""
    content = _content(path)
    header = 4 + 4 * dimensions
    magic = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    if content[:4] != magic:
        raise DataError(
            f"{path} is not an IDX file of {dimensions}-dimensional unsigned bytes: it begins with "
            f"{content[:4].hex(' ') or 'nothing'} instead of {magic.hex(' ')}; put the original file there."
        )
    if len(content) < header:
        raise DataError(f"{path} is truncated: it ends inside its {header}-byte header; fetch it again.")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    announced, present = math.prod(shape), len(content) - header
    if announced != present:
        state = "truncated" if present < announced else "damaged"
        size = "x".join(map(str, shape))
        raise DataError(
            f"{path} is {state}: its header announces {size} = {announced} values and it holds {present}; "
            "fetch it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    """All bytes of the file, unpacked when its name ends in .gz."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is truncated or not a gzip file ({error}); fetch it again.") from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}): check that it is a file you may read."
        ) from error
