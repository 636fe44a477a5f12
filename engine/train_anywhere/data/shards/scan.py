"""One pass over a shard: where its samples are, which fields they have, and whether the file is complete."""

import io
import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from train_anywhere.data.shards.checks import MISSING_PYARROW
from train_anywhere.errors import DataError

ABSENT = 2**32 - 1
"""The size of a field that a sample does not have."""

MAX_FIELDS = 256
"""The most fields of tar files: more are numbers in the names of files, such as `a.17.jpg`."""

MAX_HEADER = 1 << 20
"""The most bytes of a header in a tar file, such as a long name."""

LINE = "line"
"""The only field of *.jsonl that has a position."""

_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)
"""Key and field of a member of a tar file, as in webdataset: up to the first dot of the file name, and after it."""


Largest = tuple[int, str]
"""The largest integer of a field, and a place that has it: file and sample."""


@dataclass
class Scan:
    """The samples of a shard.

    Attributes:
        hashes: a random number for each sample, which decides its split: uint32 [n].
        counts: number of samples that have each field.
        largest: of each field that has only integers, the largest one.
        places: offset and size of a field in each sample, int64 [n, 2].
        groups: number of rows and bytes of each row group of a Parquet file.
        note: a line for the user, or "".
    """

    hashes: np.ndarray
    counts: dict[str, int]
    largest: dict[str, Largest]
    places: dict[str, np.ndarray] = field(default_factory=dict)
    groups: list[tuple[int, int]] = field(default_factory=list)
    note: str = ""


def scan(path: Path) -> Scan:
    """Scan a shard.

    Raises:
        DataError: it is damaged or incomplete, a sample has a field twice, or a package is missing.
        OSError: it can't be read.
    """
    found = {".tar": _scan_tar, ".jsonl": _scan_jsonl, ".parquet": _scan_parquet}[path.suffix.lower()](path)
    found.note = found.note or ("" if len(found.hashes) else f"{path} has no samples.")
    return found


def _scan_tar(path: Path) -> Scan:
    samples: dict[str, dict[str, tuple[int, int]]] = {}
    labels, size, linked = dict[Any, str](), os.path.getsize(path), ""
    counts = Counter[str]()
    try:
        with open_tar(path) as tar:
            while (member := tar.next()) is not None:
                if member.size < 0:
                    raise tarfile.ReadError(f"{member.name} has {member.size} bytes")
                tar.members.clear()  # type: ignore[attr-defined]  # else it keeps an object for each member
                end = member.offset_data + member.size
                if end > size:
                    raise DataError(
                        f"{path} ends early, at byte {size:,}: {member.name} would end at {end:,}; fetch it again."
                    )
                match = _NAME.fullmatch(member.name)
                if member.issym() or member.islnk():
                    linked = f"{path}: links such as {member.name} are left out; pack it with tar -h --hard-dereference."
                if not match or not member.isreg() or member.sparse is not None:
                    continue
                key, kind = match[1], match[2].lower()
                sample = samples.setdefault(key, {})
                if kind in sample:
                    raise DataError(
                        f"{path}: the sample {key} has {kind} twice, at bytes {sample[kind][0]:,} and {member.offset_data:,}; give each "
                        "sample a key of its own."
                    )
                if member.size >= ABSENT:
                    raise DataError(
                        f"{path}: {member.name} has {member.size:,} bytes, and a field has at most 4 GiB; split it."
                    )
                counts[kind] += 1
                check_fields(counts, path)
                sample[kind] = (member.offset_data, member.size)
                if kind == "cls":
                    labels.setdefault(_read_label(tar, member), f"{path}: {member.name}")
            note = _check_end(path, tar.offset)
    except (tarfile.TarError, ValueError, LookupError, OverflowError, RecursionError) as error:
        raise DataError(f"{path} is not a complete tar file ({error}); fetch it again.") from error
    places = {kind: _array([s.get(kind, (0, ABSENT)) for s in samples.values()]) for kind in counts}
    largest = {"cls": max(labels.items())} if labels and None not in labels else {}
    hashes = _hashes(key.encode(errors="surrogateescape") for key in samples)
    return Scan(hashes, dict(counts), largest, places, note=linked or note)


class _Shard(io.BufferedReader):
    """A tar file whose headers are small and whose end is an end: tarfile trusts the sizes that a file claims."""

    _ends = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes. Raises tarfile.ReadError for a header of an odd size, or if its end is missing."""
        if size is None or not 0 <= size <= MAX_HEADER:
            raise tarfile.ReadError(f"a header claims {size:,} bytes")
        found = super().read(size)
        self._ends = 0 if found or not size else self._ends + 1
        if self._ends > 2:
            raise tarfile.ReadError("its last header is not complete")
        return found


@contextmanager
def open_tar(path: Path | str) -> Iterator[tarfile.TarFile]:
    """Open a tar file that may be hostile. Raises OSError, tarfile.TarError."""
    with _Shard(io.FileIO(path)) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        yield tar


def check_fields(fields: Collection[str], path: Path) -> None:
    """Raise DataError if tar files have more than `MAX_FIELDS` fields."""
    if len(fields) > MAX_FIELDS:
        raise DataError(
            f"{path}: samples have more than {MAX_FIELDS} fields, such as {max(fields, key=len)}; a field is what follows the first dot "
            "of a file name, so replace other dots."
        )


def _read_label(tar: tarfile.TarFile, member: tarfile.TarInfo) -> int | None:
    try:
        content = tar.extractfile(member) if member.size < 32 else None
        return parse_class(content.read()) if content else None
    except ValueError:  # reported when the sample is read
        return None


def parse_class(text: bytes) -> int:
    """Return the number of a class. Raises ValueError, also for forms that only Python reads, such as 1_0."""
    if not re.fullmatch(rb"\s*[+-]?[0-9]+\s*", text):
        raise ValueError(f"{text[:20]!r} is not a whole number")
    return int(text)


def _check_end(path: Path, end: int) -> str:
    """Return a note if a tar file has no end mark; raise DataError if its last header is damaged, or more data follow."""
    with path.open("rb") as file:
        file.seek(end)
        header, rest = file.read(tarfile.BLOCKSIZE), file.read(2**16)
    if len(header) % tarfile.BLOCKSIZE or any(header):
        raise DataError(f"{path} ends early or is damaged, at byte {end:,}; fetch it again.")
    if any(rest):
        raise DataError(
            f"{path} has more data after its end at byte {end:,}, as tar files joined by cat have; unpack it with tar -i and pack it again."
        )
    return "" if header else f"{path} has no end mark at byte {end:,}: it may be incomplete."


def _scan_jsonl(path: Path) -> Scan:
    places, hashes, offset = list[tuple[int, int]](), list[np.ndarray](), 0
    counts, largest, other = Counter[str](), dict[str, Largest](), set[str]()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                places.append((offset, len(line)))
                hashes.append(_hashes([line.strip()]))
                row = _parse_line(line, f"{path}, line {number} (byte {offset:,})")
                counts.update(row.keys())
                for name, value in row.items():
                    if type(value) is int:
                        if name not in largest or value > largest[name][0]:
                            largest[name] = value, f"{path}, line {number}"
                    else:
                        other.add(name)
            offset += len(line)
    integers = {name: value for name, value in largest.items() if name not in other}
    found = np.concatenate(hashes) if hashes else _hashes([])
    return Scan(found, dict(counts), integers, {LINE: _array(places)})


def _parse_line(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        early = "" if line.endswith(b"\n") else "; the file ends there, so it may be incomplete"
        raise DataError(f"{where} is not JSON ({error}){early}.") from error
    if not isinstance(row, dict):
        raise DataError(f"{where} is a {type(row).__name__}, not a JSON object with names; use {{...}}.")
    return row


def _scan_parquet(path: Path) -> Scan:
    try:
        with import_parquet().ParquetFile(path, pre_buffer=False) as file:
            names, about = file.schema_arrow.names, file.metadata
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{path} is not a complete Parquet file of {os.path.getsize(path):,} bytes ({reason}); fetch it again."
        ) from error
    groups = [about.row_group(n) for n in range(about.num_row_groups)]
    largest: dict[str, Largest] = {}
    for number in range(about.num_columns):
        columns = [group.column(number) for group in groups]
        columns = [c for c in columns if c.physical_type in ("INT32", "INT64")]
        tops = [c.statistics.max for c in columns if c.is_stats_set and c.statistics.has_min_max]
        if tops and len(tops) == len(groups) and all(type(top) is int for top in tops):
            places = (f"{path}, row group {n}" for n in range(len(tops)))
            largest[columns[0].path_in_schema] = max(zip(tops, places, strict=True))
    hashes = np.random.PCG64(crc32(path.name.encode())).random_raw(about.num_rows) >> np.uint64(32)
    sizes = [(group.num_rows, group.total_byte_size) for group in groups]
    return Scan(hashes.astype(np.uint32), dict.fromkeys(names, about.num_rows), largest, {}, sizes)


def import_parquet() -> Any:
    """Return the module pyarrow.parquet. Raises DataError with the command that installs it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(MISSING_PYARROW) from error
    return pyarrow.parquet


def _array(places: list[tuple[int, int]]) -> np.ndarray:
    return np.array(places, np.int64).reshape(-1, 2)


def _hashes(keys: Any) -> np.ndarray:
    digests = b"".join(blake2b(key, digest_size=4).digest() for key in keys)
    return np.frombuffer(digests, "<u4")
