"""TensorBoard's files: the order of their names, and a disk that takes none for a while."""

import time
from pathlib import Path

import pytest

from train_anywhere.training.event_files import EventFiles, wait_for_new_name


def nothing() -> None:
    """No file to give up."""


@pytest.mark.timeout(60)  # a clock that is wrong is not waited for
def test_a_new_file_comes_after_those_that_are_there(tmp_path: Path) -> None:
    """Readers sort by name, and must read what an attempt purges before it."""
    wait_for_new_name(tmp_path / "none")
    there = int(time.time())
    (tmp_path / f"events.out.tfevents.{there}.node1.9999.0").touch()
    (tmp_path / "events.out.tfevents.x").touch()
    wait_for_new_name(tmp_path)
    assert int(time.time()) > there
    (tmp_path / f"events.out.tfevents.{there + 3600}.node2.1.0").touch()
    wait_for_new_name(tmp_path)


def test_an_error_that_no_disk_made_is_raised(tmp_path: Path) -> None:
    def broken() -> None:
        raise TypeError("not a number")

    with pytest.raises(TypeError, match="not a number"):
        EventFiles(tmp_path / "tensorboard").try_write(broken, nothing)


def test_a_disk_that_refuses_is_tried_again_after_a_while(tmp_path, capsys) -> None:
    files = EventFiles(tmp_path / "tensorboard")
    tries: list[int] = []

    def full() -> None:
        tries.append(1)
        raise OSError(28, "No space left on device")

    for _ in range(3):
        files.try_write(full, nothing)
    files._refused_until = 0.0
    files.try_write(full, nothing)
    assert len(tries) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("(No space left on device); training continues, retrying.")
