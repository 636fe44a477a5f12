"""Run folders: unique, found again, run.json never half-written."""

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.errors import CheckpointError
from train_anywhere.files.removal import MARKER
from train_anywhere.runs import folder
from train_anywhere.runs.folder import RunDir, create, discard, open_run, point_latest


def test_many_at_once_get_different_folders(tmp_path: Path) -> None:
    made = []
    threads = [threading.Thread(target=lambda: made.append(create(tmp_path, "a").path)) for _ in range(40)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(made)) == 40
    assert (tmp_path / "latest").resolve() in made


def test_run_json_merges_and_is_always_whole(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    assert run.read_info() == {}
    run.update(state="queued", step=0)
    done = threading.Event()
    torn = []

    def read() -> None:
        while not done.is_set():
            try:
                json.loads(run.info_file.read_text())
            except ValueError:
                torn.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(200):
        run.update(step=step, filler="x" * 20000)
    done.set()
    reader.join()
    assert not torn
    assert run.read_info()["state"] == "queued"
    assert run.read_info()["step"] == 199
    assert sorted(p.name for p in run.path.iterdir()) == [MARKER, "run.json"]


@pytest.mark.parametrize("other", ['{"state": "failed", "parts": []}', '{"format": 3, "state": "failed"}'])
def test_a_run_folder_of_another_version_is_refused(tmp_path: Path, other: str) -> None:
    run = create(tmp_path, "a")
    run.config.write_text("name: a\n")
    run.info_file.write_text(other)
    message = r"was written by another version of this project \(run.json has format (None|3), this version reads 2\): use the"
    for read in (run.read_info, lambda: open_run(run.path), lambda: run.update(step=1)):
        with pytest.raises(CheckpointError, match=message):
            read()
    assert run.info_file.read_text() == other


def test_latest_opens_the_newest(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    run.config.write_text("name: a\n")
    assert open_run(tmp_path / "latest").path == run.path


def test_a_folder_that_can_not_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        CheckpointError, match=r"no run folder can be made in .*file/a \(Not a directory\); name another"
    ):
        create(tmp_path / "file", "a")


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_what_the_user_calls_latest_stays(
    tmp_path: Path, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "latest")
    run = create(tmp_path, "a")
    assert not (tmp_path / "latest").is_symlink()
    said = f"{tmp_path / 'latest'} is not a link and stays as it is; the newest run is {run.path}.\n"
    assert capsys.readouterr().err == said
    point_latest(tmp_path, None)
    assert (tmp_path / "latest").exists()


def test_only_a_run_that_never_had_a_job_is_discarded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, used = create(tmp_path, "a"), create(tmp_path, "a")
    mine = RunDir(tmp_path / "a" / "mine")
    mine.path.mkdir()
    mine.config.write_text("name: a\n")
    (new.path / "code").mkdir()
    (used.path / "jobs.txt").write_text("4711\n")
    assert (discard(new), discard(used), discard(mine)) == (True, False, False)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted([used.id, "mine"])
    said = capsys.readouterr().err
    assert "it has jobs.txt" in said and "mine has no marker of this project" in said


def test_a_full_disk_leaves_no_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that was there before stays."""

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(folder, "claim", full)
    (tmp_path / "there").mkdir()
    for results in (tmp_path / "there", tmp_path / "deep/results"):
        with pytest.raises(CheckpointError, match="No space left"), folder.no_empty_folders(results / "a"):
            create(results, "a")
    assert [p.name for p in tmp_path.iterdir()] == ["there"] and not any((tmp_path / "there").iterdir())


def test_what_a_disk_refuses_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run that trains continues and reads its own newest values."""

    def full(path: Path, content: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    run = create(tmp_path, "a")
    run.update(state="queued", step=0)
    with monkeypatch.context() as patch:
        patch.setattr(folder, "write_atomic", full)
        assert not run.update_or_defer(state="running")
        assert not run.update_or_defer(step=4)
        run.write_deferred()
        assert (run.read_info()["state"], run.read_info()["step"]) == ("running", 4)
        with pytest.raises(OSError, match="No space left"):
            run.update(step=5)
    assert capfd.readouterr().err.count(f"{run.info_file} can't be written (No space left on device)") == 1
    assert RunDir(run.path).read_info()["state"] == "queued"
    run.write_deferred()
    read = RunDir(run.path).read_info()
    assert (read["state"], read["step"]) == ("running", 4)
