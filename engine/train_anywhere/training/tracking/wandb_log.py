"""What Weights & Biases holds of a run: its transaction logs, `<run folder>/wandb/*run-*/run-<id>.wandb`.

Each attempt has one, online too. It is a log of records in LevelDB's format: blocks of 32 KiB, in them pieces with a header of 7
bytes (checksum, length, kind). A killed process leaves a piece that is cut short, and what comes before it counts.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from train_anywhere.training.tracking.once import Pair

STEP = "trainer/global_step"
"""The optimizer steps done, in each row; the name that frameworks give it too."""

HEADER = 7
"""Bytes at the start of the file, and of each piece."""

BLOCK = 2**15
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def held(folder: Path, run_id: str, since: int = 0, rows_there: int | None = None) -> set[Pair]:
    """Every metric that the attempts of the run have logged, from optimizer step `since` on.

    Args:
        folder: run folder.
        rows_there: how many rows the server has; None: this attempt does not ask it. A process that was killed has logged more
            than it has sent.
    """
    rows = list(_kept(folder, run_id, rows_there))
    return {
        (name, int(row[STEP]))
        for row in rows
        if row.get(STEP, -1) >= since
        for name in row
        if name != STEP and not name.startswith("_")
    }


def _kept(folder: Path, run_id: str, rows_there: int | None) -> Iterator[dict[str, float]]:
    """The rows of all attempts, the newest first, without those that never came to the server.

    An attempt with a server counts its rows from where the server's end: what an earlier one logged from there on is lost. One
    without keeps all its rows until somebody sends them.
    """
    files = (folder / "wandb").glob(f"*run-*/run-{run_id}.wandb")
    for file in sorted(files, key=lambda f: f.parent.name.removeprefix("offline-"), reverse=True):
        rows = list(history(file))
        if not file.parent.name.startswith("offline-") and rows:
            first = int(rows[0]["_step"])
            rows = [row for row in rows if rows_there is None or row["_step"] < rows_there]
            rows_there = first if rows_there is None else min(first, rows_there)
        yield from rows


def history(file: Path) -> Iterator[dict[str, float]]:
    """The rows of metrics in a transaction log, each with `STEP` and the names that begin with _ of W&B itself."""
    from wandb.proto.wandb_internal_pb2 import Record

    for data in records(file.read_bytes()):
        record = Record.FromString(data)
        if record.HasField("history"):
            items = record.history.item
            yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def records(log: bytes) -> Iterator[bytes]:
    """The whole records of a log."""
    at, parts = HEADER, b""
    while at + HEADER <= len(log):
        room = BLOCK - at % BLOCK
        if room < HEADER:  # too little for a header: the rest of the block is empty
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", log, at)
        piece = log[at + HEADER : at + HEADER + length]
        if kind not in (FULL, FIRST, MIDDLE, LAST) or len(piece) < length:
            return
        parts = piece if kind in (FULL, FIRST) else parts + piece
        if kind in (FULL, LAST):
            yield parts
        at += HEADER + length
