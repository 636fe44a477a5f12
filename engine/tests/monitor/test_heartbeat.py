"""Values that a rank writes into its node's memory and another process reads."""

import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.testing.processes import run_python
from train_anywhere.distributed.topology import Topology
from train_anywhere.monitor.heartbeat import SIZE, Heartbeat, place_of, read
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.lock import process_start


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Named so that no two tests share a folder in the node's memory."""
    folder = tmp_path / f"20261122-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    return RunDir(folder)


@pytest.fixture
def beat(run: RunDir) -> Iterator[Heartbeat]:
    made = Heartbeat()
    made.open(run, Topology(rank=3, world_size=8))
    yield made
    made.close()


def path_of(run: RunDir) -> Path:
    return place_of(run).path / "rank-3"


def test_another_process_reads_what_this_one_writes(run: RunDir, beat: Heartbeat) -> None:
    beat.enter("step", "data")
    beat.fetched()
    beat.computed()
    beat.trained_batch(41)
    program = f"from pathlib import Path; from train_anywhere.monitor.heartbeat import read; print(read(Path({str(path_of(run))!r})))"
    said = run_python("-c", program)
    record = read(path_of(run))
    assert record and said.stdout.strip() == str(record)
    assert (record["rank"], record["world_size"], record["pid"]) == (3, 8, os.getpid())
    assert str(record["started"]) == process_start(os.getpid())
    shown = [record[name] for name in ("section", "place", "batch", "step", "trained")]
    assert shown == ["step", "data", 1, 41, 1]


def test_own_work_ends_where_the_wait_for_others_begins(run: RunDir, beat: Heartbeat) -> None:
    """Each time is compared with the moments around it: the machine may be busy."""
    now, before = time.monotonic, time.monotonic()
    beat.enter("step", "data")
    entered = now()
    time.sleep(0.02)
    data_came = now()
    beat.fetched()
    time.sleep(0.03)
    done = now()
    beat.computed()
    waits = now()
    time.sleep(0.2)  # the collective
    others_came = now()
    beat.trained_batch(1)
    record = read(path_of(run))
    assert record
    assert data_came - entered <= record["data"] <= done - before
    assert done - entered <= record["own"] <= waits - before
    assert record["longest"] >= others_came - waits


def test_a_checkpoint_is_a_section_within_another_one(run: RunDir, beat: Heartbeat) -> None:
    beat.enter("step", "data")
    before = read(path_of(run))
    with beat.within("checkpoint"):
        inside = read(path_of(run))
    after = read(path_of(run))
    assert before and inside and after
    assert [r["section"] for r in (before, inside, after)] == ["step", "checkpoint", "step"]
    assert before["turn"] < inside["turn"] < after["turn"]


def test_a_rank_that_ends_leaves_no_file(run: RunDir, beat: Heartbeat) -> None:
    assert path_of(run).exists()
    beat.close()
    assert not path_of(run).parent.exists()
    beat.trained_batch(1)  # a thread that still runs disturbs nothing


def test_ranks_that_end_at_the_same_time(run: RunDir, beat: Heartbeat) -> None:
    """The other one may have removed the folder of both in between."""
    assert beat.folder
    shutil.rmtree(beat.folder.path)
    beat.close()


def test_what_is_no_heartbeat_is_not_read(tmp_path: Path) -> None:
    for content in (b"", b"x" * 50, b"x" * 4096, bytes(4096)):
        (tmp_path / "rank-0").write_bytes(content)
        assert read(tmp_path / "rank-0") is None
    assert read(tmp_path / "none") is None


def test_a_folder_that_is_somebody_elses_is_done_without(run: RunDir) -> None:
    place = place_of(run)
    place.path.symlink_to(run.path)
    beat = Heartbeat()
    beat.open(run, Topology())
    assert beat.path is None
    beat.enter("step")
    beat.trained_batch(1)
    beat.close()
    place.path.unlink()
    assert list(run.path.iterdir()) == []


def test_a_step_costs_little_more_than_its_three_writes(beat: Heartbeat) -> None:
    """Twice the time of clock and `pack_into` by hand. Three system calls would take five times."""
    memory, layout = bytearray(SIZE), struct.Struct("=16Q")

    def by_hand(step: int) -> None:
        for _ in range(3):
            layout.pack_into(memory, 0, step, *range(14), int(time.monotonic()))

    def ours(step: int) -> None:
        beat.fetched()
        beat.computed()
        beat.trained_batch(step)

    beat.enter("step", "data")
    rounds = [(seconds(ours), seconds(by_hand)) for _ in range(10)]
    assert min(our for our, _ in rounds) < 4 * min(hand for _, hand in rounds)


def seconds(do: Callable[[int], None]) -> float:
    """Return the CPU seconds of 2,000 steps."""
    began = time.process_time()
    for step in range(2000):
        do(step)
    return time.process_time() - began
