"""Shards of small images whose first pixel is the id of the sample / 1000."""

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (70, 50, 61, 1, 38, 45)
"""Samples of each training shard: 265, which fill no whole number of batches of 24."""


def image(key: int) -> np.ndarray:
    """The image of a sample, float32 [4, 4, 1]."""
    pixels = np.random.default_rng(key).random((4, 4, 1)).astype(np.float32)
    pixels[0, 0, 0] = key / 1000
    return pixels


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def write_shard(path: Path, keys: Iterable[int]) -> Path:
    """Write a shard of the kind that its name has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = list(keys)
    if path.suffix.lower() == ".tar":
        return write_tar(
            path,
            (m for k in keys for m in ((f"{k:06}.npy", npy(image(k))), (f"{k:06}.cls", b"%d" % (k % 7)))),
        )
    rows: list[dict[str, Any]] = [{"image": image(k).tolist(), "label": k % 7} for k in keys]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        import pyarrow
        import pyarrow.parquet

        table = {name: [row[name] for row in rows] for name in ("image", "label")}
        pyarrow.parquet.write_table(pyarrow.table(table), path, row_group_size=20)
    return path


def write_shards(folder: Path, kind: str = "tar", sizes: Iterable[int] = SIZES) -> Path:
    """Write training shards with the ids 0, 1, ..., and one of 30 samples to validate on; return the folder."""
    first = 0
    for number, size in enumerate(sizes):
        write_shard(folder / "train" / f"{number:04}.{kind}", range(first, first + size))
        first += size
    write_shard(folder / "val" / f"0.{kind}", range(900, 930))
    return folder
