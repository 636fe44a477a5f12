"""The index of a data set's shards: scanned once, kept in a folder of its own, and mapped into memory by every process."""

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from train_anywhere.data.folders import prepare_folder
from train_anywhere.data.shards.checks import ShardFiles, list_shards
from train_anywhere.data.shards.scan import ABSENT, LINE, Scan, check_fields, scan
from train_anywhere.errors import DataError
from train_anywhere.files.terminal.output import show_progress

VERSION = 3
"""Changes with the layout of an index, so that older ones are written again."""

KEY = 24
"""Characters of the key of a data set."""

THREADS = 8
"""Files scanned at once: a shared disk answers single calls slowly, but many in parallel."""

INFO = "index.json"

AGREED: dict[Path, str] = {}
"""The key of the index of each folder that this run has recorded: another one is refused."""

Files = list[tuple[str, int, int]]
"""Name, size, and time in ns of each shard."""


@dataclass(frozen=True)
class Index:
    """The samples of all shards of a folder; row i is the i-th sample of the shards in the order of their names.

    Attributes:
        root, place: the folders of the shards and of the index.
        info: `files` (see `Files`), their `counts`, the `largest` integers of all, `units` and `notes`. A unit is a shard or a row group of
            Parquet: number of the file, number in the file, rows, bytes.
    """

    root: Path
    place: Path
    shards: ShardFiles
    info: dict[str, Any]

    @cached_property
    def units(self) -> np.ndarray:
        """The units, int64 [units, 4]."""
        return np.array(self.info["units"], np.int64).reshape(-1, 4)

    @cached_property
    def starts(self) -> np.ndarray:
        """The first row of each unit, and the number of all rows: int64 [units + 1]."""
        return np.concatenate([[0], np.cumsum(self.units[:, 2])])

    @property
    def fields(self) -> set[str]:
        """The fields that samples have."""
        return {name for counts in self.info["counts"] for name in counts}

    def array(self, name: str) -> np.ndarray:
        """Return an array over all rows, mapped into memory, so a copy of this object in another process is small."""
        return _map(f"{self.place}/{name}.npy")


@lru_cache(maxsize=256)
def _map(file: str) -> np.ndarray:
    return np.load(file, mmap_mode="r", allow_pickle=False).view(np.ndarray)  # indexing a memmap takes longer


def open_index(folder: Path, cache: Path, pulse: Callable[[], None] = lambda: None) -> Index:
    """Return the index of the shards below a folder; if `cache` lacks it, one process scans them and the others wait.

    `pulse` is called after each scanned file.

    Raises:
        DataError: a shard can't be read, is damaged or incomplete; or the index can't be written, or is damaged.
    """
    shards = list_shards(folder)
    names = sorted(name for names in shards.splits.values() for name in names)
    try:
        states = [os.stat(folder / name) for name in names]
    except OSError as error:
        raise DataError(f"{error.filename} can't be read ({error.strerror}).") from error
    files = [(name, s.st_size, s.st_mtime_ns) for name, s in zip(names, states, strict=True)]
    # run.json has the key of a run's data: it stays in new versions
    key = hashlib.sha256(json.dumps([2, files]).encode()).hexdigest()[:KEY]
    if AGREED.get(folder, key) != key:
        raise DataError(
            f"shards in {folder} changed since this run indexed them; put them back, or start a new run."
        )
    place = cache / f"index-{VERSION}{key}"
    prepare_folder(place, lambda new: _write(new, folder, files, pulse), "; use data.index=FOLDER")
    try:
        index = Index(folder, place, shards, json.loads((place / INFO).read_text()))
        fields = {".parquet": set[str](), ".jsonl": {LINE}}.get(shards.kind, index.fields)
        for name in ("hash", *(f"{what}:{name}" for name in fields for what in ("offset", "size"))):
            if index.array(name).shape != (index.starts[-1],):
                raise ValueError(f"{name} has the wrong length")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{place} is damaged ({error}); delete this folder, and the next run writes it again."
        ) from error
    return index


def _write(place: Path, folder: Path, files: Files, pulse: Callable[[], None]) -> None:
    scans: list[Scan] = []
    task = f"{folder}: indexing {len(files):,} shards"
    with show_progress(task) as advance, ThreadPoolExecutor(THREADS) as pool:
        for (_, size, _), one in zip(files, pool.map(partial(_scan, folder), files), strict=True):
            scans.append(one)
            advance(size)
            pulse()
    rows = [len(one.hashes) for one in scans]
    arrays = {"hash": np.concatenate([one.hashes for one in scans])}
    names = sorted({name for one in scans for name in one.places})
    check_fields(names, folder)
    for name in names:
        absent = [np.full((n, 2), ABSENT) for n in rows]
        places = np.concatenate([s.places.get(name, a) for s, a in zip(scans, absent, strict=True)])
        arrays |= {f"offset:{name}": places[:, 0], f"size:{name}": places[:, 1].astype(np.uint32)}
    for name, array in arrays.items():
        np.save(place / f"{name}.npy", array, allow_pickle=False)
    largest = [one.largest for one in scans if len(one.hashes)]
    common = set.intersection(*map(set, largest)) if largest else set()
    info = {
        "files": files,
        "counts": [one.counts for one in scans],
        "largest": {name: max(one[name] for one in largest) for name in sorted(common)},
        "units": [
            (n, number, *unit)
            for n, one in enumerate(scans)
            for number, unit in enumerate(one.groups or [(rows[n], files[n][1])])
        ],
        "notes": [one.note for one in scans if one.note],
    }
    (place / INFO).write_text(json.dumps(info))


def _scan(folder: Path, file: tuple[str, int, int]) -> Scan:
    path = folder / file[0]
    try:
        found, state = scan(path), os.stat(path)
    except OSError as error:
        raise DataError(f"{path} can't be read ({error.strerror or error}).") from error
    if (state.st_size, state.st_mtime_ns) != file[1:]:
        raise DataError(f"{path} changed while it was indexed; start again when it is complete.")
    return found
