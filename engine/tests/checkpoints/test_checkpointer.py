"""Asynchronous checkpoints: the buffers are free soon, nothing is lost, disks may fill up."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
from train_anywhere.checkpoints.disk.manifest import CheckpointInfo, find_damage
from train_anywhere.checkpoints.recovery import recover_leftovers
from train_anywhere.checkpoints.store import CheckpointStore, Retention, Staging
from train_anywhere.config.keys import defaults
from train_anywhere.config.schema import Checkpoint, Config
from train_anywhere.errors import CheckpointError
from train_anywhere.files import ROOT
from train_anywhere.files.node_disk import run_folder_names
from train_anywhere.launch.processes import LocalRun
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import REQUIRED_KEYS


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "run").mkdir()
    section = defaults(Checkpoint) | {"local": str(tmp_path / "node"), "mode": "max"}
    tree = dict.fromkeys(REQUIRED_KEYS, "x") | {"checkpoint": section}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(tree))
    return RunDir(tmp_path / "run")


@pytest.fixture
def store(run: RunDir) -> CheckpointStore:
    return CheckpointStore(run.checkpoints, Retention("max", keep_last=2))


@pytest.fixture
def staging(run: RunDir, tmp_path: Path) -> Staging:
    return Staging((tmp_path / "node").joinpath(*run_folder_names(run.path)))


def text(step: int) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.ckpt").write_text(f"weights {step}") and None


def save(checkpointer: AsyncCheckpointer, step: int, write: Callable[[Path], None] | None = None) -> None:
    checkpointer.wait()
    checkpointer.save(write or text(step), CheckpointInfo(step, 0, 0, {}, None, "mine"))


def steps(store: CheckpointStore) -> list[int]:
    assert all(find_damage(s.path) is None for s in store.all())
    return [s.step for s in store.all()]


@pytest.mark.parametrize("staged", [True, False])
def test_everything_is_published_at_the_end(store: CheckpointStore, staging: Staging, staged: bool) -> None:
    with AsyncCheckpointer(store, staging if staged else None) as checkpointer:
        for step in range(1, 6):
            save(checkpointer, step)
            checkpointer.check()
    assert steps(store)[-1] == 5
    assert checkpointer.newest is not None and checkpointer.newest.step == 5
    assert not staging.folder.exists()


def test_the_training_thread_waits_for_the_write_and_not_for_the_publication(
    store: CheckpointStore, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, publishing = threading.Event(), threading.Event()

    def publish(*arguments: Any) -> Any:
        publishing.set()
        assert slow.wait(30)
        return CheckpointStore.publish(store, *arguments)

    monkeypatch.setattr(store, "publish", publish)
    checkpointer = AsyncCheckpointer(store, staging)
    save(checkpointer, 1)
    assert publishing.wait(30)
    checkpointer.wait()  # returns though the publication hangs
    assert not checkpointer.in_use
    slow.set()
    checkpointer.close()
    assert steps(store) == [1]


def test_while_one_is_copied_the_next_is_written(store: CheckpointStore, staging: Staging) -> None:
    """The buffers of the second are free before the first is in the run folder."""
    seen: list[list[int]] = []
    second = threading.Event()

    def write_second(folder: Path) -> None:
        seen.append(steps(store))
        text(2)(folder)
        second.set()

    pause, submitted = CheckpointStore.publish, threading.Event()

    def publish(source: Path, between: Callable[[], None]) -> Any:
        assert submitted.wait(30)
        return pause(store, source, between)

    store.publish = publish  # type: ignore[method-assign]
    checkpointer = AsyncCheckpointer(store, staging)
    save(checkpointer, 1)
    save(checkpointer, 2, write_second)
    submitted.set()
    checkpointer.close()
    assert second.is_set() and seen == [[]]
    assert steps(store) == [1, 2] or steps(store) == [2]


def test_what_a_newer_one_replaced_is_not_published_but_the_best_is(
    store: CheckpointStore, staging: Staging
) -> None:
    for step, value in [(1, 0.2), (2, 0.9), (3, 0.1), (4, 0.3)]:
        staging.write(text(step), CheckpointInfo(step, 0, 0, {}, value, "mine"))
    AsyncCheckpointer(store, staging).close()
    assert steps(store) == [2, 4]


def test_an_error_of_the_worker_is_raised_at_the_next_step(store: CheckpointStore, staging: Staging) -> None:
    def broken(folder: Path) -> None:
        raise TypeError("can't pickle this")

    checkpointer = AsyncCheckpointer(store, staging)
    save(checkpointer, 1, broken)
    with pytest.raises(CheckpointError, match="can't pickle this") as caught:
        for _ in range(3000):
            checkpointer.check()
            time.sleep(0.01)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(CheckpointError):
        checkpointer.wait()


@pytest.mark.needs_root
def test_full_local_disk(store: CheckpointStore, small_disk: Path, told: list[str]) -> None:
    big = lambda folder: (folder / "model.ckpt").write_bytes(b"x" * (2 << 20)) and None  # noqa: E731
    with AsyncCheckpointer(store, Staging(small_disk / "digits" / "run")) as checkpointer:
        save(checkpointer, 1, big)
        save(checkpointer, 2, big)
    assert steps(store) == [1, 2]
    assert len(told) == 1 and "No space left" in told[0]


@pytest.mark.needs_root
def test_full_shared_disk_until_there_is_room(small_disk: Path, staging: Staging, told: list[str]) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (800 << 10))
    store = CheckpointStore(small_disk / "checkpoints", Retention("max", keep_last=1))
    checkpointer = AsyncCheckpointer(store, staging)
    save(checkpointer, 1, lambda folder: (folder / "w").write_bytes(b"y" * (400 << 10)) and None)
    while not told:
        checkpointer.check()  # training continues
        time.sleep(0.01)
    assert "No space left" in told[0] and steps(store) == []
    filler.unlink()
    checkpointer.close()
    assert steps(store) == [1]


@pytest.mark.needs_root
@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.quick("False")
def test_shared_disk_that_stays_full(small_disk: Path, staging: Staging, staged: bool) -> None:
    (small_disk / "filler").write_bytes(b"x" * (800 << 10))
    store = CheckpointStore(small_disk / "checkpoints", Retention("max", keep_last=1))
    checkpointer = AsyncCheckpointer(store, staging if staged else None)
    checkpointer.patience_s = 1.5
    save(checkpointer, 1, lambda folder: (folder / "w").write_bytes(b"y" * (400 << 10)) and None)
    with pytest.raises(CheckpointError, match=r"No space left") as caught:
        checkpointer.close()
    assert (str(staging.folder / "00000001") in str(caught.value)) == staged
    assert len(staging.list_complete()) == staged
    assert not list(store.folder.glob(".0*"))


def test_another_error_is_not_hidden_by_a_full_disk(
    store: CheckpointStore, staging: Staging, told: list[str]
) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ZeroDivisionError), AsyncCheckpointer(store, staging) as checkpointer:
        checkpointer.patience_s = 0.0
        save(checkpointer, 1, full)
        raise ZeroDivisionError
    assert "it is lost" in told[-1]


KILLED = """
import os, signal, sys, threading
from pathlib import Path
sys.path[:0] = [{root!r}, {root!r} + "/engine"]
from train_anywhere.checkpoints.store import CheckpointStore, Retention, Staging
from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
from train_anywhere.checkpoints.disk.manifest import CheckpointInfo
from train_anywhere.runs.folder import RunDir
run, staging = RunDir(Path({run!r})), Staging(Path({staging!r}))
store = CheckpointStore(run.checkpoints, Retention("max", 2))
store.publish = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
checkpointer = AsyncCheckpointer(store, staging)
checkpointer.wait()
info = CheckpointInfo(7, 0, 0, {{}}, None, "mine")
checkpointer.save(lambda folder: (folder / "w").write_text("7"), info)
checkpointer.close()
"""


@pytest.mark.parametrize("by", ["command", "supervisor of this machine"])
def test_after_a_kill_another_process_publishes(
    run: RunDir,
    store: CheckpointStore,
    staging: Staging,
    make_config: Callable[..., Config],
    by: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    script = KILLED.format(root=str(ROOT), run=str(run.path), staging=str(staging.folder))
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    assert steps(store) == []
    if by == "command":
        command = [sys.executable, "-m", "train_anywhere.checkpoints.recovery", str(run.path)]
        assert subprocess.run(command, cwd=ROOT).returncode == 0
    else:
        LocalRun(run, make_config(), 2).publish()
    assert "step 7" in capfd.readouterr().err
    assert steps(store) == [7]
    assert not staging.folder.exists()


def test_nothing_to_recover(run: RunDir) -> None:
    assert recover_leftovers(run) == 0
    assert (
        subprocess.run(
            [sys.executable, "-m", "train_anywhere.checkpoints.recovery", str(run.path)], cwd=ROOT
        ).returncode
        == 0
    )
