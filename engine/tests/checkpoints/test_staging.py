"""A node's own disk: which one it is, what is trusted there, and that it is this user's."""

import os
from pathlib import Path
from typing import Any

import pytest

from train_anywhere.checkpoints.disk.manifest import CheckpointInfo
from train_anywhere.checkpoints.store import Staging
from train_anywhere.files.node_disk import find_run_folder, run_folder_names
from train_anywhere.files.removal import MARKER
from train_anywhere.runs.folder import RunDir

REST: dict[str, Any] = {"epoch": 0, "batch": 0, "metrics": {}, "value": None, "framework": "mine"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "run").mkdir()
    return RunDir(tmp_path / "run")


@pytest.fixture
def staging(run: RunDir, tmp_path: Path) -> Staging:
    return Staging((tmp_path / "node").joinpath(*run_folder_names(run.path)))


def write(folder: Path) -> None:
    (folder / "model.ckpt").write_text("weights")


def test_what_is_complete_comes_by_step(staging: Staging) -> None:
    assert staging.list_complete() == []
    for step in (20, 3, 100_000_000):
        staging.write(write, CheckpointInfo(step=step, **REST))
    assert [saved.step for saved in staging.list_complete()] == [3, 20, 100_000_000]
    staging.drop(staging.list_complete()[0].path)
    staging.clear()
    assert not staging.folder.exists()


def test_nothing_is_left_of_a_write_that_failed(staging: Staging) -> None:
    def fails(folder: Path) -> None:
        write(folder)
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        staging.write(fails, CheckpointInfo(step=1, **REST))
    assert [p.name for p in staging.folder.iterdir()] == [MARKER]


def test_a_cut_file_is_not_complete(staging: Staging) -> None:
    path = staging.write(write, CheckpointInfo(step=1, **REST))
    (path / "model.ckpt").write_text("weigh")
    assert staging.list_complete() == []


def test_checkpoints_from_before_the_last_boot_are_not_trusted(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("train_anywhere.checkpoints.store.boot_id", lambda: "earlier")
        staging.write(write, CheckpointInfo(step=5, **REST))
    assert staging.list_complete() == []


def test_only_on_another_disk_than_the_run_folder(run: RunDir, tmp_path: Path, require: Any) -> None:
    here, memory = str(tmp_path), "/dev/shm"
    other = os.path.isdir(memory) and os.stat(memory).st_dev != os.stat(here).st_dev
    require(other, "needs two disks: TMPDIR and /dev/shm")
    assert find_run_folder(run.path, "auto", {"TRAIN_LOCAL_DISK": here}) is None
    assert find_run_folder(run.path, None, {"TRAIN_LOCAL_DISK": memory}) is None
    found = find_run_folder(run.path, "auto", {"TRAIN_LOCAL_DISK": "/nowhere", "SLURM_TMPDIR": memory})
    assert found is not None and found == Path(memory, f"{tmp_path.name}-{os.getuid()}", "run")
    asked = find_run_folder(run.path, here, {"SLURM_TMPDIR": memory})
    assert asked is not None and asked.is_relative_to(here)


def test_only_for_this_user(staging: Staging) -> None:
    staging.write(write, CheckpointInfo(step=1, **REST))
    assert staging.folder.stat().st_mode & 0o077 == 0


@pytest.mark.needs_root
def test_a_folder_of_another_user_is_not_used(staging: Staging, require: Any) -> None:
    require(os.getuid() == 0, "run as root: the test gives a folder to another user")
    staging.write(write, CheckpointInfo(step=1, **REST))
    os.chown(staging.folder, 12345, 12345)
    assert staging.list_complete() == []
    with pytest.raises(PermissionError, match="belongs to another user"):
        staging.write(write, CheckpointInfo(step=2, **REST))


def test_a_link_in_its_place_is_not_used(run: RunDir, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / run.id
    mine.mkdir(parents=True)
    (mine / "thesis.tex").touch()
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / run_folder_names(run.path)[0]).symlink_to(tmp_path / "mine")
    staging = Staging((tmp_path / "node").joinpath(*run_folder_names(run.path)))
    assert not staging.is_owned()
    with pytest.raises(PermissionError, match="is a symbolic link"):
        staging.write(write, CheckpointInfo(step=1, **REST))
    staging.clear()
    assert [p.name for p in mine.iterdir()] == ["thesis.tex"]


def test_what_can_not_be_removed_is_published_once(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    path = staging.write(write, CheckpointInfo(step=1, **REST))
    (path / MARKER).write_text("of something else")
    staging.drop(path)
    assert path.is_dir() and staging.list_complete() == []
