"""Checkpoints behind the training's back: the buffers are free soon, nothing is lost, disks may fill up."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from src.checkpoints.checkpointer import Publisher, rescue
from src.checkpoints.manifest import damage_of
from src.checkpoints.staging import Stage, names_of
from src.checkpoints.store import CheckpointStore
from src.errors import CheckpointError
from src.files import ROOT
from src.runs.folder import RunDir

FACTS: dict[str, Any] = {"epoch": 0, "batch": 0, "metrics": {}, "value": None, "framework": "lightning"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    return RunDir(tmp_path / "run")


@pytest.fixture
def store(run: RunDir) -> CheckpointStore:
    return CheckpointStore(run.checkpoints, "max", keep_last=2)


@pytest.fixture
def stage(run: RunDir, tmp_path: Path) -> Stage:
    return Stage((tmp_path / "node").joinpath(*names_of(run)))


def text(step: int) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.ckpt").write_text(f"weights {step}") and None


def save(publisher: Publisher, step: int, write: Callable[[Path], None] | None = None, **facts: Any) -> None:
    publisher.wait_buffers()
    publisher.save(write or text(step), step=step, **{**FACTS, **facts})


def steps(store: CheckpointStore) -> list[int]:
    assert all(damage_of(s.path) is None for s in store.all())
    return [s.step for s in store.all()]


@pytest.mark.parametrize("staged", [True, False])
def test_everything_is_published_at_the_end(store: CheckpointStore, stage: Stage, staged: bool) -> None:
    with Publisher(store, stage if staged else None) as publisher:
        for step in range(1, 6):
            save(publisher, step)
            publisher.check()
    assert steps(store)[-1] == 5
    assert publisher.newest is not None and publisher.newest.step == 5
    assert not stage.folder.exists()


def test_the_training_thread_waits_for_the_write_and_not_for_the_publication(
    store: CheckpointStore, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, publishing = threading.Event(), threading.Event()

    def publish(*arguments: Any) -> Any:
        publishing.set()
        assert slow.wait(30)
        return CheckpointStore.publish(store, *arguments)

    monkeypatch.setattr(store, "publish", publish)
    publisher = Publisher(store, stage)
    save(publisher, 1)
    assert publishing.wait(30)
    publisher.wait_buffers()  # returns though the publication hangs
    assert not publisher.worker.busy
    slow.set()
    publisher.close()
    assert steps(store) == [1]


def test_while_one_is_copied_the_next_is_written(store: CheckpointStore, stage: Stage) -> None:
    """The buffers of the second are free before the first is in the run folder."""
    seen: list[list[int]] = []
    second = threading.Event()

    def write_second(folder: Path) -> None:
        seen.append(steps(store))
        text(2)(folder)
        second.set()

    pause, handed_over = CheckpointStore.publish, threading.Event()

    def publish(source: Path, between: Callable[[], None]) -> Any:
        assert handed_over.wait(30)
        return pause(store, source, between)

    store.publish = publish  # type: ignore[method-assign]
    publisher = Publisher(store, stage)
    save(publisher, 1)
    save(publisher, 2, write_second)
    handed_over.set()
    publisher.close()
    assert second.is_set() and seen == [[]]
    assert steps(store) == [1, 2] or steps(store) == [2]


def test_what_a_newer_one_replaced_is_not_published_but_the_best_is(
    store: CheckpointStore, stage: Stage
) -> None:
    for step, value in [(1, 0.2), (2, 0.9), (3, 0.1), (4, 0.3)]:
        stage.write(text(step), {"step": step, **FACTS, "value": value})
    Publisher(store, stage).close()
    assert steps(store) == [2, 4]


def test_an_error_of_the_worker_is_raised_at_the_next_step(store: CheckpointStore, stage: Stage) -> None:
    def broken(folder: Path) -> None:
        raise TypeError("can't pickle this")

    publisher = Publisher(store, stage, tell=lambda line: None)
    save(publisher, 1, broken)
    with pytest.raises(CheckpointError, match="can't pickle this") as caught:
        for _ in range(3000):
            publisher.check()
            time.sleep(0.01)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(CheckpointError):
        publisher.wait_buffers()


@pytest.mark.needs_root
def test_full_local_disk(store: CheckpointStore, small_disk: Path) -> None:
    told: list[str] = []
    big = lambda folder: (folder / "model.ckpt").write_bytes(b"x" * (2 << 20)) and None  # noqa: E731
    with Publisher(store, Stage(small_disk / "digits" / "run"), tell=told.append) as publisher:
        save(publisher, 1, big)
        save(publisher, 2, big)
    assert steps(store) == [1, 2]
    assert len(told) == 1 and "No space left" in told[0]


@pytest.mark.needs_root
def test_full_shared_disk_until_there_is_room(small_disk: Path, stage: Stage) -> None:
    told: list[str] = []
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (800 << 10))
    store = CheckpointStore(small_disk / "checkpoints", "max", keep_last=1)
    publisher = Publisher(store, stage, tell=told.append)
    save(publisher, 1, lambda folder: (folder / "w").write_bytes(b"y" * (400 << 10)) and None)
    while not told:
        publisher.check()  # training goes on
        time.sleep(0.01)
    assert "No space left" in told[0] and steps(store) == []
    filler.unlink()
    publisher.close()
    assert steps(store) == [1]


@pytest.mark.needs_root
@pytest.mark.parametrize("staged", [True, False])
def test_shared_disk_that_stays_full(small_disk: Path, stage: Stage, staged: bool) -> None:
    (small_disk / "filler").write_bytes(b"x" * (800 << 10))
    store = CheckpointStore(small_disk / "checkpoints", "max", keep_last=1)
    publisher = Publisher(store, stage if staged else None, tell=lambda line: None)
    publisher.worker.patience = 1.5
    save(publisher, 1, lambda folder: (folder / "w").write_bytes(b"y" * (400 << 10)) and None)
    with pytest.raises(CheckpointError, match=r"No space left") as caught:
        publisher.close()
    assert (str(stage.folder / "00000001") in str(caught.value)) == staged
    assert len(stage.complete()) == staged
    assert not list(store.folder.glob(".0*"))


@pytest.mark.needs_root
def test_events_that_find_no_room_stay_on_the_node_until_there_is_some(
    small_disk: Path, stage: Stage
) -> None:
    told: list[str] = []
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (800 << 10))
    store = CheckpointStore(small_disk / "checkpoints", "max", keep_last=1)
    with Publisher(store, stage, told.append) as publisher:
        (publisher.mirror.open() / "events").write_bytes(b"y" * (400 << 10))
        save(publisher, 1)
    assert steps(store) == [1]  # it fits, and the run has ended well
    assert str(stage.growing) in told[-1] and stage.growing.is_dir()
    filler.unlink()
    Publisher(store, stage).close()
    assert (small_disk / "tensorboard" / "events").stat().st_size == 400 << 10
    assert not stage.folder.exists()


def test_another_error_is_not_hidden_by_a_full_disk(store: CheckpointStore, stage: Stage) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    told: list[str] = []
    with (
        pytest.raises(ZeroDivisionError),
        Publisher(store, stage, told.append) as publisher,
    ):
        publisher.worker.patience = 0.0
        save(publisher, 1, full)
        raise ZeroDivisionError
    assert "it is lost" in told[-1]


KILLED = """
import os, signal, sys, threading
from pathlib import Path
sys.path.insert(0, {root!r})
from src.checkpoints.store import CheckpointStore
from src.checkpoints.checkpointer import Publisher
from src.runs.folder import RunDir
from src.checkpoints.staging import Stage, write_record
run, stage = RunDir(Path({run!r})), Stage(Path({stage!r}))
store = CheckpointStore(run.checkpoints, "max", 2)
store.publish = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
write_record(run, stage, store.rule)
publisher = Publisher(store, stage)
publisher.wait_buffers()
facts = dict(step=7, epoch=0, batch=0, metrics={{}}, value=None, framework="keras")
publisher.save(lambda folder: (folder / "w").write_text("7"), **facts)
publisher.close()
"""


def test_after_a_kill_another_process_publishes(run: RunDir, store: CheckpointStore, stage: Stage) -> None:
    script = KILLED.format(root=str(ROOT), run=str(run.path), stage=str(stage.folder))
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    assert steps(store) == []
    command = [sys.executable, "-m", "src.checkpoints.checkpointer", str(run.path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "step 7" in done.stderr
    assert steps(store) == [7]
    assert rescue(run) is None


def test_nothing_to_rescue(run: RunDir) -> None:
    assert rescue(run) is None
    assert (
        subprocess.run(
            [sys.executable, "-m", "src.checkpoints.checkpointer", str(run.path)], cwd=ROOT
        ).returncode
        == 0
    )
