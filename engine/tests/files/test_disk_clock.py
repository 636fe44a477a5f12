"""The time by a disk's clock."""

import os
import time
from pathlib import Path

import pytest

from train_anywhere.files import atomic
from train_anywhere.files.atomic import disk_time


def test_it_is_the_disk_s_time_if_this_machine_s_clock_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, now = time.time(), time.time
    atomic._clock_offset.cache_clear()
    monkeypatch.setattr(time, "time", lambda: now() + 7200)
    assert disk_time(tmp_path) == pytest.approx(true, abs=5)
    assert disk_time(tmp_path) == pytest.approx(true, abs=5)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "new").touch()
    assert os.stat(tmp_path / "new").st_mtime == pytest.approx(disk_time(tmp_path), abs=5)


@pytest.mark.parametrize("folder", ["absent", "file"])
def test_without_a_disk_s_it_is_this_machine_s(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    assert disk_time(tmp_path / folder) == pytest.approx(time.time(), abs=5)
