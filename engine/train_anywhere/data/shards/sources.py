"""Read the fields of samples: sorted by shard and offset, with one open file for each shard and process."""

import json
import os
import resource
import threading
import time
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from train_anywhere.data.shards.index import Index
from train_anywhere.data.shards.scan import ABSENT, LINE, import_parquet, open_tar
from train_anywhere.errors import DataError

OPEN = max(64, min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
"""The most files that a process keeps open."""

LOOK_S = 1.0
"""Seconds after which an open file is compared with its index again."""

_DECODING = threading.Lock()

Fields = dict[str, Any]


class OpenFile:
    """A shard that is open for reading, and was not changed since it was indexed.

    `state` is its size, and its time in ns; a time of 0 is not compared.
    """

    def __init__(self, path: str, state: tuple[int, int]) -> None:
        self.path, self.state, self.looked = path, state, 0.0
        self.parquet: Any = None
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115  # stays open

    def check(self) -> None:
        """Raise DataError if the file changed."""
        if (now := time.monotonic()) - self.looked < LOOK_S:
            return
        found = os.stat(self.path)
        if (found.st_size, found.st_mtime_ns if self.state[1] else 0) != self.state:
            raise DataError(
                f"{self.path} changed since it was indexed: it has {found.st_size:,} bytes and had {self.state[0]:,}; put it back, or "
                "start a new run."
            )
        self.looked = now

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from an offset."""
        inside = 0 <= offset <= offset + size <= self.state[0]
        found = os.pread(self.file.fileno(), size, offset) if inside else b""
        if not inside or len(found) != size:
            raise DataError(
                f"{self.path} has no {size:,} bytes at byte {offset:,}: it ends early, or its index is damaged. Fetch it again, or delete "
                "the index in data.index."
            )
        return found


@lru_cache(maxsize=OPEN)
def _open(path: str, state: tuple[int, int], process: int) -> OpenFile:
    return OpenFile(path, state)


@lru_cache(maxsize=4)
def _members(path: str, state: tuple[int, int]) -> dict[int, str]:
    """Return the name of each member of a tar file by the offset of its content: the index does not hold them."""
    with open_tar(path) as tar:
        return {member.offset_data: member.name for member in tar}


class Source:
    """Reads the fields of samples by their row in an index; `folder` may be a copy of the shards on this node.

    It keeps at most `cache` bytes of decoded row groups.
    """

    def __init__(self, index: Index, folder: Path, fields: list[str], cache: int) -> None:
        self.index, self.folder, self.fields, self.cache = index, folder, fields, cache
        self._same = folder == index.root
        self._tables: OrderedDict[int, Any] = OrderedDict()
        self._bytes = 0

    def read(self, rows: np.ndarray) -> list[Fields]:
        """Return the fields that each sample has, for rows in ascending order: int64 [n]."""
        units = self._units(rows)
        if self.index.shards.kind == ".parquet":
            return [
                fields
                for unit in np.unique(units).tolist()
                for fields in self._take(unit, rows[units == unit] - self.index.starts[unit])
            ]
        names = [LINE] if self.index.shards.kind == ".jsonl" else self.fields
        offsets, sizes = (
            [self.index.array(f"{what}:{name}")[rows].tolist() for name in names]
            for what in ("offset", "size")
        )
        found, before = list[Fields](), -1
        for n, unit in enumerate(units.tolist()):
            if unit != before:
                file, before = self._file(unit), unit
            places = [(name, at[n], size[n]) for name, at, size in zip(names, offsets, sizes, strict=True)]
            found.append({name: file.read(at, size) for name, at, size in places if size != ABSENT})
        return [json.loads(sample[LINE]) for sample in found] if names == [LINE] else found

    def name(self, row: int) -> str:
        """Return the path and the key of a sample, such as `/data/train/0001.tar, sample 000017`."""
        [unit] = self._units(np.array([row]))
        number, file = row - int(self.index.starts[unit]), self._file(unit)
        if self.index.shards.kind == ".parquet":
            return f"{file.path}, row {number} of row group {self.index.units[unit, 1]}"
        if self.index.shards.kind == ".jsonl":
            return f"{file.path}, sample {number} (byte {self.index.array(f'offset:{LINE}')[row]:,})"
        fields = self.index.info["counts"][unit]
        field = next((f for f in fields if self.index.array(f"size:{f}")[row] != ABSENT), next(iter(fields)))
        offset = int(self.index.array(f"offset:{field}")[row])
        member = _members(file.path, file.state).get(offset, f"at byte {offset:,}.{field}")
        return f"{file.path}, sample {member[: -len(field) - 1]}"

    def _units(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.index.starts, rows, "right") - 1

    def _take(self, unit: int, rows: np.ndarray) -> list[Fields]:
        file = self._file(unit)
        try:
            table = self._table(unit, file)
            columns = [_values(column, rows.tolist()) for column in table.columns]
        except (OSError, ValueError) as error:
            reason, group = str(error).partition("\n")[0], self.index.units[unit, 1]
            raise DataError(
                f"{file.path}, row group {group} can't be read ({reason}); fetch it again."
            ) from error
        return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _file(self, unit: int) -> OpenFile:
        name, size, when = self.index.info["files"][int(self.index.units[unit, 0])]
        try:
            file = _open(f"{self.folder}/{name}", (size, when if self._same else 0), os.getpid())
            file.check()
        except OSError as error:
            raise DataError(f"{self.folder / name} can't be read ({error.strerror}).") from error
        return file

    def _table(self, unit: int, file: OpenFile) -> Any:
        """Return a row group as a table of the fields; the least recently used ones are dropped."""
        with _DECODING:  # else several threads would decode it
            if unit not in self._tables:
                file.parquet = file.parquet or import_parquet().ParquetFile(file.path, pre_buffer=False)
                have = [name for name in self.fields if name in file.parquet.schema_arrow.names]
                number = int(self.index.units[unit, 1])
                self._tables[unit] = file.parquet.read_row_group(number, have, use_threads=False)
                self._bytes += self._tables[unit].nbytes
                while len(self._tables) > 1 and self._bytes > self.cache:
                    self._bytes -= self._tables.popitem(last=False)[1].nbytes
            self._tables.move_to_end(unit)
            return self._tables[unit]


def _values(column: Any, rows: list[int]) -> list[Any]:
    """Return the values of some rows of a column of Parquet: lists of numbers as arrays, which takes a tenth of the time."""
    from pyarrow import types

    kind = column.type
    numbers = types.is_list(kind) and (
        types.is_integer(kind.value_type) or types.is_floating(kind.value_type)
    )
    if not numbers or column.null_count or any(chunk.values.null_count for chunk in column.chunks):
        return [column[row].as_py() for row in rows]
    return [column[row].values.to_numpy().copy() for row in rows]
