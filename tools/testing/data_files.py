"""Real files for the data tests: IDX files like MNIST's, and pictures in ImageNet's layout."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def write_idx() -> Callable[[Path, np.ndarray], bytes]:
    """Return a function that writes a uint8 array as an IDX file and returns the bytes."""

    def write(path: Path, values: np.ndarray) -> bytes:
        content = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()
        content = gzip.compress(content) if path.suffix == ".gz" else content
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return content

    return write


@pytest.fixture
def mnist_dir(tmp_path: Path, write_idx: Callable[[Path, np.ndarray], bytes]) -> Path:
    """Make a data folder with 120 + 20 MNIST-like samples, half of them compressed."""
    random = np.random.default_rng(0)
    for part, length in (("train", 120), ("t10k", 20)):
        raw = tmp_path / "MNIST" / "raw"
        write_idx(
            raw / f"{part}-images-idx3-ubyte.gz", random.integers(256, size=(length, 28, 28), dtype=np.uint8)
        )
        write_idx(raw / f"{part}-labels-idx1-ubyte", (np.arange(length) % 10).astype(np.uint8))
    return tmp_path


@pytest.fixture
def picture_dir(tmp_path: Path) -> Path:
    """Make pictures of three classes, 4 of each to train and 2 to validate."""
    random = np.random.default_rng(0)
    for split, length in (("train", 4), ("val", 2)):
        for name in ("cat", "dog", "eel"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(length):
                shape = (40 + 9 * i, 60 - 7 * i, 3) if i % 2 else (50, 50)
                pixels = random.integers(256, size=shape, dtype=np.uint8)
                extension = ("JPEG", "png", "jpg", "jpeg")[i]
                Image.fromarray(pixels).save(tmp_path / split / name / f"{name}_{i}.{extension}")
    return tmp_path
