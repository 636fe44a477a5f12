"""One curve in TensorBoard, however often a run was resumed."""

import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.files import ROOT
from train_anywhere.training.event_files import EventFiles
from train_anywhere.training.lightning.loop.tensorboard import TensorBoard


def part(folder: Path, start: int, stop: int, value: float) -> None:
    """Log `value` at the steps after `start` up to `stop`, as one part of a run."""
    board = TensorBoard(EventFiles(folder), start)
    for step in range(start + 1, stop + 1):
        board.log_metrics({"train/loss": value}, step)
    board.finalize("success")
    board.log_metrics({"test/loss": value}, stop)  # the test comes after fit has finalized
    board.finalize("success")


def test_a_resumed_run_shows_one_curve(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    part(tmp_path, 0, 6, 1.0)  # killed after step 6
    part(tmp_path, 4, 8, 2.0)  # resumed from the checkpoint of step 4
    events = EventAccumulator(str(tmp_path)).Reload()
    curve = [(e.step, e.value) for e in events.Scalars("train/loss")]
    assert curve == [(s, 1.0) for s in (1, 2, 3, 4)] + [(s, 2.0) for s in (5, 6, 7, 8)]
    assert [(e.step, e.value) for e in events.Scalars("test/loss")] == [(8, 2.0)]


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
def test_a_disk_that_is_full_for_a_while(small_disk: Path) -> None:
    """The curve continues when there is room.

    In a process as training has it, without TensorFlow: with it, tensorboard writes through TensorFlow's files.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    command = [sys.executable, "-c", FILL, str(small_disk)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    events = EventAccumulator(str(small_disk / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    curve = [(e.step, e.value) for e in events.Scalars("train/loss")]
    assert curve[0] == (5, 5.0) and curve[-1] == (300, 300.0)
    assert done.stderr.count("takes no files") == 1 and "Traceback" not in done.stderr, done.stderr
