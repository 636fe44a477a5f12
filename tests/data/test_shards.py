"""The page about large data: its files pack a folder, and its function reads it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.data.shards import Decoder
from tests.template.test_readme import PAGES, own_files
from train_anywhere.data.shards.open import open_shards
from train_anywhere.files import ROOT


@pytest.fixture
def packed(picture_dir: Path, tmp_path: Path) -> Path:
    """Tar files that the script of the page makes."""
    (page,) = (page for page in PAGES if page.name == "large-data.md")
    for name, text in own_files(page).items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "pack.py", str(picture_dir / "train"), "tars"]
    subprocess.run(command, cwd=tmp_path, check=True)
    return tmp_path / "tars"


def test_packed_pictures_are_rows(packed: Path, picture_dir: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "train_anywhere", "index", str(packed)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [p for p in (picture_dir / "train").rglob("*") if p.is_file()]
    assert f"Samples:       {len(files)}\n" in done.stdout
    train = open_shards(str(packed), str(tmp_path), 0, decode=Decoder(image_size=16)).train
    images, labels = train.read(np.arange(len(train)), 0, True)
    assert images.shape == (len(files), 16, 16, 3)
    counts = [len([*p.iterdir()]) for p in sorted((picture_dir / "train").iterdir())]
    assert np.bincount(labels).tolist() == counts


def test_the_function_of_the_page(packed: Path, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec((tmp_path / "mine.py").read_text(), names)
    image, label = names["decode"]({"image": np.ones(2), "label": 3}, None, scale=0.5)
    assert image.tolist() == [0.5, 0.5] and label == 3
