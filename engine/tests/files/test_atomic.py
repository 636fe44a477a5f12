"""Files are replaced in one step, without losing any file of the user."""

import os
import time
from pathlib import Path

import pytest

from train_anywhere.files import atomic
from train_anywhere.files.atomic import (
    claim,
    disk_time,
    link_atomic,
    move,
    replace,
    set_aside,
    write_atomic,
    write_with_backup,
)
from train_anywhere.files.removal import temporary_name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def test_a_new_file_has_the_permissions_of_the_old_one(file: Path) -> None:
    write_atomic(file, "one")
    file.chmod(0o640)
    write_atomic(file, "größer")
    assert file.read_text(encoding="utf-8") == "größer" and file.stat().st_mode & 0o777 == 0o640
    assert os.listdir(file.parent) == ["run.json"]


@pytest.mark.parametrize("kind, make", [("a folder", Path.mkdir), ("a link", lambda p: p.symlink_to("gone"))])
def test_a_folder_or_a_link_is_not_replaced(file: Path, kind: str, make: object) -> None:
    make(file)  # type: ignore[operator]
    for write in (write_atomic, lambda path, text: replace(path.with_name("other"), path)):
        with pytest.raises(FileExistsError, match=f"{file} is {kind}, not an ordinary file"):
            write(file, "text")
    assert os.listdir(file.parent) == ["run.json"] and (file.is_dir() or file.is_symlink())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(file: Path) -> None:
    write_atomic(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(file, "\udcff")
    assert file.read_text() == "old" and os.listdir(file.parent) == ["run.json"]


def test_a_file_is_on_the_disk_before_it_has_its_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after the rename would leave an empty one."""
    done, rename = list[object](), Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: done.append(os.fstat(number).st_size))
    monkeypatch.setattr(Path, "replace", lambda self, to: [done.append("renamed"), rename(self, to)])
    write_atomic(file, "text")
    write_atomic(file, "text", flush=False)
    assert done == [4, "renamed", "renamed"] and file.read_text() == "text"


def test_a_leftover_of_a_killed_process_with_the_same_id_is_replaced(file: Path) -> None:
    temporary_name(file).symlink_to(file.with_name("elsewhere"))
    write_atomic(file, "new")
    assert os.listdir(file.parent) == ["run.json"]


def test_replaced_content_is_kept_if_it_differs(file: Path) -> None:
    for text in ("one", "one", "two", "three", "three"):
        write_with_backup(file, text)
    kept = {p.name: p.read_text() for p in file.parent.iterdir()}
    assert kept == {"run.json": "three", "run.json.1": "one", "run.json.2": "two"}


def test_setting_aside_never_replaces_anything(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "file").write_text(str(number))
        assert set_aside(tmp_path / "a", "damaged").name == f"a.damaged-{number}"
    assert (tmp_path / "a.damaged-1" / "file").read_text() == "1"


def test_a_folder_is_not_moved_onto_anything(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        move(tmp_path / "a", tmp_path / "gone")
    move(tmp_path / "a", tmp_path / "b")
    assert sorted(os.listdir(tmp_path)) == ["b", "gone"]


def test_one_of_several_takes_a_file(file: Path) -> None:
    file.write_text("x")
    assert claim(file).read_text() == "x"
    with pytest.raises(FileNotFoundError):
        claim(file)


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_a_link_replaces_links_only(tmp_path: Path, make: object) -> None:
    assert link_atomic(tmp_path / "latest", "a") and link_atomic(tmp_path / "latest", "b")
    assert os.readlink(tmp_path / "latest") == "b"
    make(tmp_path / "other")  # type: ignore[operator]
    assert not link_atomic(tmp_path / "other", "a") and not (tmp_path / "other").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["latest", "other"]


def test_it_is_the_disk_s_time_if_this_machine_s_clock_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, now = time.time(), time.time
    atomic._clock_offset.cache_clear()
    monkeypatch.setattr(time, "time", lambda: now() + 7200)
    assert disk_time(tmp_path) == pytest.approx(true, abs=5)
    assert disk_time(tmp_path) == pytest.approx(true, abs=5)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "new").touch()
    assert os.stat(tmp_path / "new").st_mtime == pytest.approx(disk_time(tmp_path), abs=5)


@pytest.mark.parametrize("folder", ["absent", "file"])
def test_without_a_disk_s_it_is_this_machine_s(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    assert disk_time(tmp_path / folder) == pytest.approx(time.time(), abs=5)
