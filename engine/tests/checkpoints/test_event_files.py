"""TensorBoard's files are copied from the node's disk to the shared one, each byte once."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.checkpoints.disk.event_files import EventFileSync, append_missing, wait_for_new_name
from train_anywhere.checkpoints.disk.staging import Staging
from train_anywhere.files import ROOT


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(tmp_path / "node" / "run")


def nothing() -> None:
    """No file to give up."""


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the event files of the training, without those of nodes in subfolders."""
    return {file.name: file.read_bytes() for file in folder.glob("*") if file.is_file()}


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


def test_each_file_gets_its_missing_tail(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    append_missing(source, target)
    assert not target.exists()
    (source / "events.1").write_bytes(b"one, two")
    append_missing(source, target)
    (target / "events.1").write_bytes(b"one")  # killed in the middle of it
    (source / "events.2").write_bytes(b"a second part of the run")
    append_missing(source, target)
    append_missing(source, target)
    assert contents(target) == contents(source)


def test_the_run_folder_follows_while_the_file_grows(staging: Staging, tmp_path: Path) -> None:
    sync = EventFileSync(staging, tmp_path / "tensorboard")
    sync.interval_s = 0.05
    file = sync.prepare_folder() / "events"
    assert file.is_relative_to(staging.folder)
    for text in (b"one", b"one, two"):
        file.write_bytes(text)
        wait(lambda: contents(sync.target) == {"events": text})  # noqa: B023  # called at once
    sync.interval_s = 1000.0
    time.sleep(0.1)
    file.write_bytes(b"one, two, three")
    sync.sync_soon()
    wait(lambda: contents(sync.target) == {"events": b"one, two, three"})
    file.write_bytes(b"one, two, three, four")
    assert sync.close()
    assert contents(sync.target) == {"events": b"one, two, three, four"}


def test_without_staging_files_are_in_the_run_folder(tmp_path: Path) -> None:
    sync = EventFileSync(None, tmp_path / "run" / "tensorboard")
    (sync.prepare_folder() / "events").write_bytes(b"one")
    assert sync.close()
    assert contents(sync.target) == {"events": b"one"}


def test_event_files_from_before_the_last_boot_are_not_synced(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (EventFileSync(staging, tmp_path / "tensorboard").prepare_folder() / "events").write_bytes(b"\0\0\0")
    monkeypatch.setattr("train_anywhere.checkpoints.disk.staging.boot_id", lambda: "another")
    assert EventFileSync(Staging(staging.folder), tmp_path / "tensorboard").close()
    assert not (tmp_path / "tensorboard").exists()


def test_training_does_not_wait_for_a_disk_that_hangs(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, released = threading.Event(), threading.Event()

    def hang(source: Path, target: Path) -> None:
        hanging.set()
        assert released.wait(60)
        append_missing(source, target)

    monkeypatch.setattr("train_anywhere.checkpoints.disk.event_files.append_missing", hang)
    sync = EventFileSync(staging, tmp_path / "tensorboard")
    file = sync.prepare_folder() / "events"
    sync.try_write(lambda: file.write_bytes(b"one") and None, nothing)
    sync.sync_soon()
    assert hanging.wait(60)
    sync.try_write(lambda: file.write_bytes(b"one, two") and None, nothing)  # returns
    sync.sync_soon()
    released.set()
    assert sync.close()
    assert contents(sync.target) == {"events": b"one, two"}


@pytest.mark.needs_root
def test_full_shared_disk_until_there_is_room(small_disk: Path, staging: Staging, told: list[str]) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (800 << 10))
    sync = EventFileSync(staging, small_disk / "tensorboard")
    sync.interval_s = 0.02
    data = os.urandom(400 << 10)
    (sync.prepare_folder() / "events").write_bytes(data)
    wait(lambda: told)
    time.sleep(0.2)  # tried again, and not reported again
    assert len(told) == 1 and "No space left" in told[0]
    filler.unlink()
    assert sync.close()
    assert contents(sync.target) == {"events": data}


@pytest.mark.needs_root
def test_shared_disk_that_stays_full(small_disk: Path, staging: Staging, told: list[str]) -> None:
    (small_disk / "filler").write_bytes(b"x" * (800 << 10))
    sync = EventFileSync(staging, small_disk / "tensorboard")
    (sync.prepare_folder() / "events").write_bytes(os.urandom(400 << 10))
    assert not sync.close()
    assert str(staging.events) in told[-1] and "train_anywhere.checkpoints.recovery" in told[-1]


def test_an_error_that_no_disk_made_is_raised(staging: Staging, tmp_path: Path) -> None:
    def broken() -> None:
        raise TypeError("not a number")

    with pytest.raises(TypeError, match="not a number"):
        EventFileSync(staging, tmp_path / "tensorboard").try_write(broken, nothing)


def test_both_disks_refuse(staging: Staging, tmp_path: Path, told: list[str]) -> None:
    """Report it once, train, and try the run folder again after a while."""
    sync = EventFileSync(staging, tmp_path / "tensorboard")
    tries: list[int] = []

    def full() -> None:
        tries.append(1)
        raise OSError(28, "No space left on device")

    for _ in range(3):
        sync.try_write(full, nothing)
    assert len(tries) == 2 and len(told) == 2
    sync._refused_until = 0.0
    sync.try_write(full, nothing)
    assert len(tries) == 3 and len(told) == 2


@pytest.mark.slow
def test_a_killed_training_leaves_no_event_behind(tmp_path: Path) -> None:
    """After SIGKILL the batch script copies every byte from the node's disk to the run folder."""
    options = [
        "model=mlp", "trainer.max_epochs=500", "trainer.accelerator=cpu", "trainer.log_every_n_steps=1",
    ]  # fmt: skip
    places = [f"checkpoint.local={tmp_path / 'node'}", f"paths.results={tmp_path / 'results'}"]
    command = [sys.executable, "src/train.py", *options, *places, "monitor.progress=none"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    training = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    grown: Callable[[], list[Path]] = lambda: [  # noqa: E731
        file for file in tmp_path.glob("node/*/*/growing-*/*") if file.stat().st_size > 20_000
    ]
    wait(lambda: training.poll() is not None or grown())
    training.send_signal(signal.SIGKILL)
    assert training.wait() == -signal.SIGKILL
    left = contents(grown()[0].parent)
    run = next(tmp_path.glob("results/digits/*"))
    publish = [sys.executable, "-m", "train_anywhere.checkpoints.recovery", str(run)]
    subprocess.run(publish, cwd=ROOT, check=True)
    assert contents(run / "tensorboard") == left
    assert not list(tmp_path.glob("node/*/*"))
    subprocess.run(publish, cwd=ROOT, check=True)
    assert contents(run / "tensorboard") == left
