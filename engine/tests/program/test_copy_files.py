"""Files on the node's disk that are copied to the run folder."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from train_anywhere.files.owned_folder import OwnedFolder, make_owned
from train_anywhere.program.copy_files import Copier
from train_anywhere.program.run_program import _copy_the_rest


@pytest.fixture
def copier(tmp_path: Path) -> Copier:
    (tmp_path / "disk" / "deep").mkdir(parents=True)
    return Copier(tmp_path / "disk", tmp_path / "run", 600)


def write(path: Path, text: str, age: float = 60) -> None:
    path.write_text(text)
    os.utime(path, (time.time() - age,) * 2)


def test_complete_files_are_copied_once(copier: Copier) -> None:
    write(copier.source / "deep" / "a.pt", "one")
    write(copier.source / "b.pt", "young", age=0)
    (copier.source / "link").symlink_to("/etc/passwd")
    assert copier.copy() == ["b.pt"]
    copy = copier.target / "deep" / "a.pt"
    assert copy.read_text() == "one" and [p.name for p in copier.target.iterdir()] == ["deep"]
    number = copy.stat().st_ino
    copier.copy()
    assert copy.stat().st_ino == number  # not again
    write(copier.source / "deep" / "a.pt", "two!")
    copier.copy()
    assert copy.read_text() == "two!"


@pytest.mark.parametrize(
    "killed, open_file, kept",
    [(False, None, "new"), (True, None, "old"), (True, False, "new"), (True, True, "old")],
)
def test_the_last_copy_never_replaces_a_whole_file_by_half_of_one(
    copier: Copier, killed: bool, open_file: bool | None, kept: str
) -> None:
    write(copier.source / "a.pt", "old")
    copier.copy()
    write(copier.source / "a.pt", "new", age=0)
    write(copier.source / "first.pt", "nothing older is there", age=0)
    if open_file is not None:
        copier.open = {copier.source / "a.pt"} if open_file else set()
    copier.start()
    assert copier.finish(killed) == (["a.pt"] if kept == "old" else [])
    assert (copier.target / "a.pt").read_text() == kept
    assert (copier.target / "first.pt").exists()


def test_open_files_are_seen(copier: Copier) -> None:
    write(copier.source / "read.pt", "x")
    with open(copier.source / "a.pt", "w"), open(copier.source / "read.pt"):
        assert copier.find_open(os.getpid()) == {copier.source / "a.pt"}
    assert copier.find_open(os.getpid()) == set()


def test_of_a_process_that_has_ended_nothing_is_known(copier: Copier) -> None:
    """Else the file that it was writing would count as complete."""
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert copier.find_open(ended.pid) is None  # not waited for yet
    assert copier.find_open(ended.pid) is None


def test_files_that_the_disk_does_not_take_stay(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    place = OwnedFolder(copier.source.parent, (copier.source.name, "rank-0"), "part of rank 0")
    make_owned(place)
    own = Copier(place.path, copier.target, 600)
    write(own.source / "a.pt", "one")
    copier.target.write_text("a disk that can't be written")
    own.start()
    _copy_the_rest(own, place, killed=False)
    assert f"1 files of {own.source} on " in capsys.readouterr().err
    assert (own.source / "a.pt").read_text() == "one"
    copier.target.unlink()
    again = Copier(place.path, copier.target, 600)
    again.start()
    _copy_the_rest(again, place, killed=False)
    assert (copier.target / "a.pt").read_text() == "one" and not place.path.exists()


def test_a_file_that_changes_while_it_is_copied_is_left(
    copier: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    write(copier.source / "a.pt", "one")
    copied = shutil.copy2

    def copy(source: Path, target: Path, **options: bool) -> None:
        copied(source, target, **options)
        source.write_text("more than one")

    monkeypatch.setattr(shutil, "copy2", copy)
    assert copier.copy() == ["a.pt"]
    assert list(copier.target.iterdir()) == []
