"""TensorBoard's curves as TensorBoard itself reads them."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from train_anywhere.checkpoints.disk.event_files import EventFileSync
from train_anywhere.checkpoints.disk.staging import Staging


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


@pytest.mark.needs_root
def test_a_local_disk_that_fills_up(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rest of the curve goes to the run folder without loss or repetition."""
    from train_anywhere.training.keras.loop.tensorboard import TensorBoard

    mirror = EventFileSync(Staging(small_disk / "digits" / "run"), tmp_path / "tensorboard")
    board = TensorBoard(mirror, 4)
    board.write(5, {"train/loss": 5.0})
    with suppress(OSError):
        (small_disk / "filler").write_bytes(b"x" * (2 << 20))
    for step in range(6, 300):  # more than the last page of the file has room for
        board.write(step, {"train/loss": float(step), "lr": 0.5})
    assert mirror.close()
    assert curve(mirror.target, "train/loss") == [(step, float(step)) for step in range(5, 300)]
    assert curve(mirror.target, "lr") == [(step, 0.5) for step in range(6, 300)]
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left" in line


def test_a_file_that_ends_within_a_record(tmp_path: Path) -> None:
    """After a kill or a power loss the run folder has the appended part, and the next attempt resumes: one curve."""
    from train_anywhere.training.keras.loop.tensorboard import TensorBoard

    for cut in (0, 1, 9, 40):
        folder = tmp_path / str(cut)
        first = TensorBoard(EventFileSync(None, folder), 0)
        for step in (10, 20, 30):
            first.write(step, {"train/loss": step / 8})
        file = next(folder.iterdir())
        os.truncate(file, file.stat().st_size - cut)
        resumed = TensorBoard(EventFileSync(None, folder), 20)
        for step in (30, 40):
            resumed.write(step, {"train/loss": step / 4})
        assert curve(folder, "train/loss") == [(10, 1.25), (20, 2.5), (30, 7.5), (40, 10)]
