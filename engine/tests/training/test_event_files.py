"""TensorBoard's files of both frameworks: their names, one curve however often a run was resumed, full disks."""

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tools.testing.processes import run_python
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


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def part(folder: Path, start: int, stop: int, value: float) -> None:
    """Log `value` at the steps after `start` up to `stop`, as one part of a run."""
    from train_anywhere.training.lightning.loop.tensorboard import TensorBoard

    board = TensorBoard(EventFiles(folder), start)
    for step in range(start + 1, stop + 1):
        board.log_metrics({"train/loss": value}, step)
    board.finalize("success")
    board.log_metrics({"test/loss": value}, stop)  # the test comes after fit has finalized
    board.finalize("success")


def test_a_resumed_run_shows_one_curve(tmp_path: Path) -> None:
    part(tmp_path, 0, 6, 1.0)  # killed after step 6
    part(tmp_path, 4, 8, 2.0)  # resumed from the checkpoint of step 4
    assert curve(tmp_path, "train/loss") == [(s, 1.0) for s in (1, 2, 3, 4)] + [
        (s, 2.0) for s in (5, 6, 7, 8)
    ]
    assert curve(tmp_path, "test/loss") == [(8, 2.0)]


def test_no_files_besides_events(tmp_path: Path) -> None:
    part(tmp_path, 0, 2, 1.0)
    assert [p.name.split(".")[0] for p in tmp_path.iterdir()] == ["events"]


FILL = """
import sys
from pathlib import Path
from train_anywhere.training.lightning.loop.tensorboard import TensorBoard
from train_anywhere.training.event_files import EventFiles
from train_anywhere.distributed.topology import Topology
from train_anywhere.launch.failure import watch_threads
from train_anywhere.runs.folder import RunDir

disk = Path(sys.argv[1])
watch_threads(RunDir(disk), Topology())  # as each rank does
files = EventFiles(disk / "tensorboard")
board = TensorBoard(files, 4)
board.log_metrics({"train/loss": 5.0}, 5)
filler = disk / "filler"
try:
    filler.write_bytes(b"x" * (2 << 20))
except OSError:
    pass
for step in range(6, 300):  # more than the last page of the file has room for
    board.log_metrics({"train/loss": float(step), "lr": 0.5}, step)
filler.unlink()
files._refused_until = 0.0
board.log_metrics({"train/loss": 300.0}, 300)
board.finalize("success")
"""


@pytest.mark.slow
@pytest.mark.needs_root
def test_a_disk_that_is_full_for_a_while_of_lightning(small_disk: Path) -> None:
    """The curve continues when there is room.

    In a process as training has it, without TensorFlow: with it, tensorboard writes through TensorFlow's files.
    """
    done = run_python("-c", FILL, str(small_disk))
    assert done.returncode == 0, done.stderr
    found = curve(small_disk / "tensorboard", "train/loss")
    assert found[0] == (5, 5.0) and found[-1] == (300, 300.0)
    assert done.stderr.count("takes no files") == 1 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.needs_root
def test_a_disk_that_is_full_for_a_while_of_keras(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
