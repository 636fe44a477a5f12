"""The samples of shards as a `DataSet`, and the values of their fields."""

import inspect
import io
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from train_anywhere.data.array_data import stack
from train_anywhere.data.order.assignment import BlockOrder
from train_anywhere.data.shards.scan import parse_class
from train_anywhere.data.shards.sources import Fields, Source
from train_anywhere.errors import DataError, listed

PICTURES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm")
"""Fields of tar files that are pictures."""

LABELS = ("cls", "label")
"""Fields that are class numbers."""

PAD = "pad or crop them with data.decode._target_="
"""What to do with rows of different shapes."""

_NPY = b"\x93NUMPY"

_PICTURE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n|RIFF....WEBP|GIF8[79]a|BM....\0\0\0\0|II\*\0|MM\0\*", re.DOTALL
)


class ShardRows:
    """One split of the samples of shards.

    Args:
        source: reads samples.
        columns: the fields of each column, of which a sample has one.
        decode: the user's function from a sample, a dict of its columns, to a row: a tuple or dict of arrays. It may have an argument
            `random`: a numpy Generator in training, the same for each (seed, epoch, row), else None.
        seed: the seed of the run.
        chosen: the rows of the split in the index, int64 [n], ascending.
        blocks: the order of the rows in training; None: any order of all rows.
    """

    def __init__(
        self,
        source: Source,
        columns: Mapping[str, tuple[str, ...]],
        decode: Any,
        seed: int,
        chosen: np.ndarray,
        blocks: BlockOrder | None,
    ) -> None:
        self.source, self.columns, self.seed, self.chosen, self.blocks = source, columns, seed, chosen, blocks
        if isinstance(decode, partial) and isinstance(decode.func, type):
            decode = decode()
        self.function: Callable[..., Any] | None = decode if callable(decode) else None
        takes = inspect.signature(self.function).parameters if self.function else {}
        self._supplied: dict[str, Any] = {"random": None} if "random" in takes else {}

    def __len__(self) -> int:
        return len(self.chosen)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Any:
        """Return the rows of `indices` in the structure of the function's rows; else (image, label), or a dict of the columns."""
        sequence = np.argsort(indices, kind="stable")
        samples = self.source.read(self.chosen[indices[sequence]])
        rows: list[Any] = [None] * len(indices)
        supplied = self._supplied
        if draws := train and bool(supplied):
            # one generator whose counter is set for each row: a new one would take ten times as long
            bits = np.random.Philox(key=self.seed << 64 | epoch)
            state, supplied = bits.state, {"random": np.random.Generator(bits)}
        for place, index, fields in zip(sequence.tolist(), indices[sequence].tolist(), samples, strict=True):
            if draws:
                state["state"]["counter"][3] = index
                bits.state = state
            rows[place] = self._row(fields, index, supplied)
        try:
            return stack(rows, PAD)
        except DataError as error:
            where = self._name(indices[next((n for n, row in enumerate(rows) if not _fits(rows[0], row)), 0)])
            raise DataError(f"{where}: {error}") from error

    def row_names(self) -> list[str]:
        """Return the shard and the key of each sample."""
        return [*map(self._name, range(len(self)))]

    def _name(self, index: int) -> str:
        return self.source.name(int(self.chosen[index]))

    def check_columns(self) -> None:
        """Raise DataError with the first sample that lacks a column."""
        index = self.source.index
        for unit, (file, _, rows, _) in enumerate(index.units.tolist()):
            for names in self.columns.values():
                have = sum(index.info["counts"][file].get(name, 0) for name in names)
                first = int(index.starts[unit])
                for row in np.intersect1d(range(first, first + rows), self.chosen) if have < rows else ():
                    [fields] = self.source.read(np.array([row]))
                    self._row(fields, int(np.searchsorted(self.chosen, row)), self._supplied)

    def _row(self, fields: Fields, index: int, supplied: dict[str, Any]) -> Any:
        sample, name = {}, ""
        try:
            for column, names in self.columns.items():
                for name in names:
                    if fields.get(name) is not None:
                        break
                else:
                    raise DataError(f"it has no {' or '.join(names)}, the field of data.columns.{column}.")
                sample[column] = _decode(name, fields[name])
            if self.function is not None:
                return self.function(sample, **supplied)
            return (sample["image"], sample["label"]) if [*sample] == ["image", "label"] else sample
        except DataError as error:
            raise DataError(f"{self._name(index)}: {error}") from error
        except Exception as error:
            where = self._name(index)
            if len(sample) < len(self.columns) and not isinstance(error, MemoryError):
                reason = str(error).partition("\n")[0].partition(" <")[0]  # without the object of the file
                raise DataError(
                    f"{where}: {name} can't be read ({reason}); replace it, or leave it out."
                ) from error
            error.add_note(f"in {where}")
            raise


def find_columns(columns: Mapping[str, str] | None, fields: list[str]) -> dict[str, tuple[str, ...]]:
    """Return the fields of each column, such as `jpg;png`.

    Without `columns`, pictures or arrays are `image` and class numbers `label` if there are both, else each field is a column.
    Raises DataError: no sample has the fields of a column.
    """
    pictures = tuple(f for f in fields if f in (*PICTURES, "npy", "image"))
    label = tuple(name for name in LABELS if name in fields)
    named: dict[str, tuple[str, ...]] = {f: (f,) for f in fields}
    if pictures and label:
        named = {"image": pictures, "label": label}
    if columns:
        named = {column: tuple(names.split(";")) for column, names in columns.items()}
    for column, names in named.items():
        if not {*names} & {*fields}:
            raise DataError(
                f"data.columns.{column}: no sample has the field {' or '.join(names)}; use one of {listed(fields)}."
            )
    return named


def _fits(first: Any, row: Any) -> bool:
    """Return whether two rows can be stacked."""
    try:
        stack([first, row])
    except DataError:
        return False
    return True


def _decode(name: str, value: Any) -> Any:
    """Return the value of a field: a Pillow image, an array, a number, a string, parsed JSON, or bytes of an unknown kind."""
    inner = value.get("bytes") if isinstance(value, Mapping) else None
    if isinstance(inner, bytes):  # a picture in HF's Parquet files
        value = inner
    if not isinstance(value, bytes):
        return np.asarray(value) if isinstance(value, list) else value
    kind = name.rpartition(".")[2]
    if kind in ("cls", "json"):
        return parse_class(value) if kind == "cls" else _decode("", json.loads(value))
    if kind in ("txt", "text"):
        return value.decode()
    if kind == "npy" or value.startswith(_NPY):
        return _read_npy(value)
    if kind in PICTURES or _PICTURE.match(value):
        from PIL import Image

        image = Image.open(io.BytesIO(value))
        image.load()  # raises if it is damaged
        return image
    return value


def _read_npy(value: bytes) -> np.ndarray:
    """Return the array of an *.npy file; equal headers are parsed once, which takes longer than all the rest."""
    if value[:8] != _NPY + b"\x01\x00":
        found: np.ndarray = np.load(io.BytesIO(value), allow_pickle=False)
        return found
    start = 10 + int.from_bytes(value[8:10], "little")
    shape, fortran, dtype = _parse_header(value[8:start])
    if dtype.hasobject:
        raise ValueError("it has Python objects")
    return np.ndarray(shape, dtype, value, start, order="F" if fortran else "C").copy("K")


@lru_cache(maxsize=256)
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    return np.lib.format.read_array_header_1_0(io.BytesIO(header))
