"""Files on the node's disk that are copied to the run folder."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from train_anywhere.checkpoints.recovery import recover_leftovers
from train_anywhere.files.copy_files import Copier
from train_anywhere.files.node_disk import find_run_folder, rank_folder
from train_anywhere.files.removal import MARKER, OwnedFolder, make_owned, temporary_name
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
def test_the_last_copy_never_replaces_a_whole_file_by_half_of_one(copier, killed, open_file, kept):
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


WRITES = "import sys, time; file = open(sys.argv[1], 'w'); print('open', flush=True); time.sleep(60)"


def test_open_files_of_what_a_program_starts_are_seen_by_way_of_a_link(copier: Copier) -> None:
    """A shell script is the program, and the path of the node's disk has a link in it."""
    link = copier.source.with_name("link")
    link.symlink_to(copier.source)
    linked = Copier(link, copier.target, 600)
    words = ["bash", "-c", '"$@"; true', "", sys.executable, "-c", WRITES, str(link / "a.pt")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, process_group=0) as shell:
        assert shell.stdout and shell.stdout.readline() == b"open\n"
        linked.open = linked.find_open(shell.pid)
        os.killpg(shell.pid, 9)
    assert linked.open == {copier.source / "a.pt"}
    linked.target.mkdir()
    write(linked.target / "a.pt", "an older copy")
    linked.start()
    assert linked.finish(killed=True) == ["a.pt"]


def test_hidden_files_and_empty_folders_are_copied(copier: Copier) -> None:
    """Examples are .metadata of torch.distributed.checkpoint and Zarr's .zarray."""
    (copier.source / "deep" / ".array").mkdir()
    for name in (MARKER, ".metadata", f"deep/.array/{MARKER}", ".a.pt.123"):
        write(copier.source / name, name)
    write(temporary_name(copier.source / "a.pt"), "half")
    (copier.source / "empty").mkdir()
    copier.start()
    assert copier.finish(killed=False) == [] and copier.failed == []
    copied = sorted(str(p.relative_to(copier.target)) for p in copier.target.rglob("*"))
    assert copied == [".a.pt.123", ".metadata", "deep", "deep/.array", f"deep/.array/{MARKER}", "empty"]


@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_is_copied_after_what_it_leads_to(copier: Copier, absolute: bool) -> None:
    def link(name: str, to: str) -> None:
        (copier.source / name).unlink(missing_ok=True)
        (copier.source / name).symlink_to(copier.source / to if absolute else to)

    write(copier.source / "a.pt", "one")
    link("last.pt", "a.pt")
    link("newest", "deep")
    link("gone", "nothing")
    assert copier.copy() == []
    for name in ("a.pt", "b.pt", "deep/c.pt"):
        write(copier.source / name, "two", age=0)
    link("last.pt", "b.pt")
    assert {*copier.copy()} == {"a.pt", "b.pt", "deep/c.pt", "last.pt", "newest"}
    assert (copier.target / "last.pt").read_text() == "one"  # the older, whole one
    copier.start()
    assert copier.finish(killed=False) == []
    assert (
        os.readlink(copier.target / "last.pt") == "b.pt" and os.readlink(copier.target / "newest") == "deep"
    )
    assert (copier.target / "newest" / "c.pt").read_text() == "two"
    assert not os.path.lexists(copier.target / "gone")
    (copier.source / "last.pt").unlink()
    write(copier.source / "last.pt", "a file")
    copier.copy()
    assert [(copier.target / n).read_text() for n in ("last.pt", "b.pt")] == ["a file", "two"]


def test_a_link_that_leads_out_of_the_folder_is_reported(copier, capsys):
    (copier.source / "link").symlink_to("/etc/passwd")
    assert copier.copy() == [] and copier.failed == ["link"]
    assert "(it is a link to /etc/passwd, outside of the folder)." in capsys.readouterr().err
    assert not os.path.lexists(copier.target / "link")


def test_files_of_killed_ranks_are_copied(make_run, tmp_path, capsys):
    """After one rank failed, srun has killed the others, whose files are on the node's disk."""
    words = (f"checkpoint.local={tmp_path / 'disk'}", "program.command=[examples/programs/resumable.py]")
    run = make_run(*words)[1]
    local = find_run_folder(run.path, str(tmp_path / "disk"))
    assert local
    places = [rank_folder(local, rank) for rank in (1, 2, 12)]
    for place in places:
        make_owned(place, private=True)
        write(place.path / f"{place.path.name}.pt", "saved", age=0)
    (places[1].path / "out").symlink_to("/etc/passwd")
    (places[2].path / MARKER).write_text("of someone else")
    assert recover_leftovers(run) == 1
    names = [f"{place.path.name}.pt" for place in places]
    assert sorted(p.name for p in run.checkpoints.iterdir()) == names[:2]
    assert [place.path.exists() for place in places] == [False, True, True]
    printed = capsys.readouterr().err
    assert f"error: 1 files of {places[1].path} on " in printed
    assert f"error: {places[2].path} can't be used (" in printed


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


def test_a_file_that_changes_while_it_is_copied_is_left(copier, monkeypatch):
    import shutil

    write(copier.source / "a.pt", "one")
    copied = shutil.copy2

    def copy(source: Path, target: Path, **options: bool) -> None:
        copied(source, target, **options)
        source.write_text("more than one")

    monkeypatch.setattr(shutil, "copy2", copy)
    assert copier.copy() == ["a.pt"]
    assert list(copier.target.iterdir()) == []
