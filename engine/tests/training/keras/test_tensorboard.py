"""TensorBoard's curves as TensorBoard itself reads them."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from train_anywhere.training.event_files import EventFiles


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


@pytest.mark.needs_root
def test_a_disk_that_is_full_for_a_while(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The curve continues when there is room."""
    from train_anywhere.training.keras.loop.tensorboard import TensorBoard

    files, filler = EventFiles(small_disk / "tensorboard"), small_disk / "filler"
    board = TensorBoard(files, 4)
    board.write(5, {"train/loss": 5.0})
    with suppress(OSError):
        filler.write_bytes(b"x" * (2 << 20))
    for step in range(6, 300):  # more than the last page of the file has room for
        board.write(step, {"train/loss": float(step), "lr": 0.5})
    filler.unlink()
    files._refused_until = 0.0
    board.write(300, {"train/loss": 300.0})
    board._close()
    found = curve(files.folder, "train/loss")
    assert found[0] == (5, 5.0) and found[-1] == (300, 300.0)
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left" in line


def test_a_file_that_ends_within_a_record(tmp_path: Path) -> None:
    """After a kill or a power loss the run folder has the appended part, and the next attempt resumes: one curve."""
    from train_anywhere.training.keras.loop.tensorboard import TensorBoard

    for cut in (0, 1, 9, 40):
        folder = tmp_path / str(cut)
        first = TensorBoard(EventFiles(folder), 0)
        for step in (10, 20, 30):
            first.write(step, {"train/loss": step / 8})
        file = next(folder.iterdir())
        os.truncate(file, file.stat().st_size - cut)
        resumed = TensorBoard(EventFiles(folder), 20)
        for step in (30, 40):
            resumed.write(step, {"train/loss": step / 4})
        assert curve(folder, "train/loss") == [(10, 1.25), (20, 2.5), (30, 7.5), (40, 10)]
