"""Read the transaction logs of Weights & Biases, `<run folder>/wandb/*run-*/run-<id>.wandb`.

Each attempt writes one, online too. It is a log in LevelDB's format: blocks of 32 KiB that hold pieces with a header of 7 bytes (checksum,
length, kind). A killed process may leave an incomplete last piece; the pieces before it are valid.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from train_anywhere.training.tracking.sent_metrics import MetricPoint

STEP = "trainer/global_step"
"""Key of the number of optimizer steps done in each row; frameworks use the same name."""

HEADER = 7
"""Size in bytes of the header of the file, and of each piece."""

BLOCK = 2**15
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def logged_points(
    folder: Path, run_id: str, since: int = 0, rows_there: int | None = None
) -> set[MetricPoint]:
    """Return the name and step of every metric that earlier attempts logged and did not lose.

    Args:
        folder: run folder.
        run_id: id of the run at W&B.
        since: first optimizer step to return.
        rows_there: number of rows on the server, fewer than were logged if a process was killed; None if this attempt is offline.
    """
    rows = list(_rows_not_lost(folder, run_id, rows_there))
    return {
        (name, int(row[STEP]))
        for row in rows
        if row.get(STEP, -1) >= since
        for name in row
        if name != STEP and not name.startswith("_")
    }


def _rows_not_lost(folder: Path, run_id: str, rows_there: int | None) -> Iterator[dict[str, float]]:
    """Yield the rows of all attempts, newest attempt first, without those that never reached the server.

    An online attempt numbers its rows from the server's last one, so rows that an earlier online attempt logged from that number on are
    lost. An offline attempt keeps all its rows until the user syncs them.
    """
    files = (folder / "wandb").glob(f"*run-*/run-{run_id}.wandb")
    for file in sorted(files, key=lambda f: f.parent.name.removeprefix("offline-"), reverse=True):
        rows = list(read_history(file))
        if not file.parent.name.startswith("offline-") and rows:
            first = int(rows[0]["_step"])
            rows = [row for row in rows if rows_there is None or row["_step"] < rows_there]
            rows_there = first if rows_there is None else min(first, rows_there)
        yield from rows


def read_history(file: Path) -> Iterator[dict[str, float]]:
    """Yield the rows of metrics in a transaction log, each with `STEP` and W&B's own keys, which start with _."""
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
