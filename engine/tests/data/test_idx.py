import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from train_anywhere.data.readers.idx import read_idx
from train_anywhere.errors import DataError

VALUES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("name", ["plain-ubyte", "packed-ubyte.gz"])
def test_reads_what_was_written(tmp_path: Path, write_idx, name: str) -> None:
    write_idx(tmp_path / name, VALUES)
    np.testing.assert_array_equal(read_idx(tmp_path / name, dimensions=3), VALUES)


@pytest.mark.parametrize("kept", [0, 3, 4, 15, 16, 39])
def test_every_truncation_is_noticed(tmp_path: Path, write_idx, kept: int) -> None:
    path = tmp_path / "images"
    path.write_bytes(write_idx(path, VALUES)[:kept])
    with pytest.raises(DataError, match="images"):
        read_idx(path, dimensions=3)


def test_truncated_values_are_counted(tmp_path: Path, write_idx) -> None:
    path = tmp_path / "images"
    path.write_bytes(write_idx(path, VALUES)[:-5])
    with pytest.raises(
        DataError, match=r"images is truncated: .* 2x3x4 = 24 values, but it has 19; fetch it again"
    ):
        read_idx(path, dimensions=3)


def test_too_many_values(tmp_path: Path, write_idx) -> None:
    path = tmp_path / "images"
    path.write_bytes(write_idx(path, VALUES) + b"x")
    with pytest.raises(DataError, match="images is damaged"):
        read_idx(path, dimensions=3)


def test_truncated_gzip(tmp_path: Path, write_idx) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(write_idx(path, VALUES)[:-9])
    with pytest.raises(DataError, match=r"images\.gz is truncated or not a gzip file"):
        read_idx(path, dimensions=3)


@pytest.mark.parametrize("content", [b"<html>404</html>", gzip.compress(b"x")[:2]])
def test_not_gzip_at_all(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "images.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"images\.gz"):
        read_idx(tmp_path / "images.gz", dimensions=3)


def test_wrong_magic_names_both(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(struct.pack(">BBBB", 0, 0, 13, 3) + bytes(100))
    with pytest.raises(DataError, match=r"starts with 00 00 0d 03 instead of 00 00 08 03"):
        read_idx(tmp_path / "images", dimensions=3)


def test_labels_in_place_of_images(tmp_path: Path, write_idx) -> None:
    write_idx(tmp_path / "images", np.zeros(50, np.uint8))
    with pytest.raises(DataError, match="not an IDX file of 3-dimensional"):
        read_idx(tmp_path / "images", dimensions=3)


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError, match="images can't be read"):
        read_idx(tmp_path / "images", dimensions=3)
