"""Shared folders on a node's disk: made once, whole or absent, never another user's."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.testing.processes import start_python
from train_anywhere.files import ROOT, node_disk
from train_anywhere.files.node_disk import KEEP_DAYS, boot_id, hold_lock, provide, shared_folder
from train_anywhere.files.removal import MARKER, NotOwnedError


def fill(folder: Path) -> None:
    (folder / "data").write_text("whole")


def made(disk: Path, name: str = "thing") -> bool:
    """Request the folder and return whether it had to be made."""
    filled: list[None] = []
    folder = provide(disk, name, lambda path: filled.append(fill(path)), 5, 1)
    assert (folder / "data").read_text() == "whole" and folder == shared_folder(disk).path / name
    return bool(filled)


def names(disk: Path) -> set[str]:
    return {p.name for p in shared_folder(disk).path.iterdir() if p.is_dir()}


def test_it_is_made_once(tmp_path: Path) -> None:
    assert made(tmp_path) and not made(tmp_path)
    assert shared_folder(tmp_path).path.stat().st_mode & 0o077 == 0


def test_two_processes_at_once_make_it_once(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from train_anywhere.files.node_disk import provide\n"
        "def fill(folder): time.sleep(0.5); (folder / 'data').write_text('whole'); print('filled')\n"
        "folder = provide(Path(sys.argv[1]), 'thing', fill, 5, 1)\n"
        "assert (folder / 'data').read_text() == 'whole'"
    )
    both = [start_python("-c", program, tmp_path) for _ in range(2)]
    assert sorted(p.communicate(timeout=60)[0].strip() for p in both) == ["", "filled"]


def test_what_a_killed_process_left_is_never_used(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from train_anywhere.files.node_disk import provide\n"
        "def fill(folder): (folder / 'data').write_text('ha'); os.kill(os.getpid(), 9)\n"
        "provide(Path(sys.argv[1]), 'thing', fill, 5, 1)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT)
    assert done.returncode == -9 and names(tmp_path) == {".thing"}
    assert made(tmp_path) and names(tmp_path) == {"thing"}


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        fill(folder)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        provide(tmp_path, "thing", fails, 5, 1)
    assert names(tmp_path) == set()


def test_one_from_before_the_last_boot_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    monkeypatch.setattr(node_disk, "boot_id", lambda: "a later one")
    assert made(tmp_path) and not made(tmp_path)


def test_room_is_checked_before_anything_is_written(small_disk: Path) -> None:
    with pytest.raises(OSError, match=r"small has 1\.0 MB free, and 2\.0 MB are needed"):
        provide(small_disk, "thing", lambda folder: pytest.fail("it was begun"), 2_000_000, 1)
    with pytest.raises(OSError, match="are needed"):
        provide(small_disk, "thing", lambda folder: pytest.fail("it was begun"), 1, 100_000)
    assert made(small_disk)
    os.close(node_disk._users_locks.pop())  # else the disk can't be unmounted


def test_a_disk_that_fills_up_leaves_nothing(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        provide(small_disk, "thing", lambda folder: [*map((folder / "x").write_bytes, [b"0" * 2**21])], 1, 1)
    assert names(small_disk) == set()


def test_what_no_job_asks_for_is_removed_but_not_what_is_in_use(tmp_path: Path) -> None:
    for name in ("old", "busy", "new"):
        made(tmp_path, name)
    long_ago = time.time() - (KEEP_DAYS + 1) * 86400
    for name in ("old", "busy"):
        os.utime(shared_folder(tmp_path).path / name / MARKER, (long_ago, long_ago))
    (shared_folder(tmp_path).path / "theirs").mkdir()
    (shared_folder(tmp_path).path / "theirs" / "thesis").touch()
    with hold_lock(shared_folder(tmp_path).path / ".busy.lock"):
        made(tmp_path, "newest")
    assert names(tmp_path) == {"busy", "new", "newest", "theirs"}
    made(tmp_path, "busy")  # asked for again: kept
    made(tmp_path, "one more")
    assert "busy" in names(tmp_path)


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, require: Callable[[object, str], None]) -> None:
    require(os.getuid() == 0, "run as root: the folder is given to another user")
    shared_folder(tmp_path).path.mkdir()
    os.chown(shared_folder(tmp_path).path, 12345, 12345)
    with pytest.raises(NotOwnedError, match="another user"):
        made(tmp_path)


def test_a_lock_that_was_removed_meanwhile_is_none(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    waiting = (
        "import sys; from pathlib import Path; from train_anywhere.files.node_disk import hold_lock\n"
        "print('waits', flush=True)\n"
        "with hold_lock(Path(sys.argv[1])): print(Path(sys.argv[1]).exists())"
    )
    with hold_lock(lock) as held:
        assert held
        with hold_lock(lock, wait=False) as again:
            assert not again
        other = start_python("-c", waiting, lock)
        assert other.stdout and other.stdout.readline() == "waits\n"
        time.sleep(0.2)
        lock.unlink()
    assert other.communicate(timeout=30)[0] == "True\n"


def test_boot_is_the_machines() -> None:
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
