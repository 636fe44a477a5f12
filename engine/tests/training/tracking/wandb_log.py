"""Read the transaction logs of Weights & Biases, `<run folder>/wandb/*run-*/run-<id>.wandb`.

It is a log in LevelDB's format: blocks of 32 KiB that hold pieces with a header of 7 bytes (checksum, length, kind). A killed process may
leave an incomplete last piece; the pieces before it are valid.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

HEADER = 7
"""Size in bytes of the header of the file, and of each piece."""

BLOCK = 2**15
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def read_history(file: Path) -> Iterator[dict[str, float]]:
    """Yield the rows of metrics in a transaction log, with W&B's own keys, which start with _."""
    from wandb.proto.wandb_internal_pb2 import Record

    for data in read_records(file.read_bytes()):
        record = Record.FromString(data)
        if record.HasField("history"):
            items = record.history.item
            yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def read_records(log: bytes) -> Iterator[bytes]:
    """Yield the complete records of a log."""
    at, parts = HEADER, b""
    while at + HEADER <= len(log):
        left = BLOCK - at % BLOCK
        if left < HEADER:  # a header would not fit: the rest of the block is empty
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", log, at)
        piece = log[at + HEADER : at + HEADER + length]
        if kind not in (FULL, FIRST, MIDDLE, LAST) or len(piece) < length:
            return
        parts = piece if kind in (FULL, FIRST) else parts + piece
        if kind in (FULL, LAST):
            yield parts
        at += HEADER + length
