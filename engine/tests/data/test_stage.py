"""A staged data set is the data set: whole or absent, made once on a node, and nobody reads half a copy."""

import os
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from src.data.mnist import open_mnist
from tools.testing.processes import start_python, wait_until
from train_anywhere.data.open_data import open_splits
from train_anywhere.errors import DataError
from train_anywhere.features import Features
from train_anywhere.features.stage import stage
from train_anywhere.files.node_disk import shared_folder


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The disk of a node."""
    return tmp_path / "disk"


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def copies(disk: Path) -> set[str]:
    return {p.name for p in shared_folder(disk).path.iterdir() if p.is_dir()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with sub-folders, links to the outside, to itself and to nothing, and a hidden file."""
    folder = tmp_path / "source"
    (folder / "train" / "cat").mkdir(parents=True)
    (folder / "train" / "cat" / "größe.txt").write_text("1")
    (folder / ".hidden").write_bytes(os.urandom(3_000_000))
    (folder / "empty").touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "dog.txt").write_text("2")
    (folder / "train" / "dog").symlink_to(tmp_path / "outside")
    (folder / "train" / "loop").symlink_to(folder)
    (folder / "nothing").symlink_to(tmp_path / "nothing")
    return folder


def test_a_folder_is_copied_once(source: Path, disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near = stage(source, disk, "1")
    expected = {".hidden", "empty", "train/cat/größe.txt", "train/dog/dog.txt"}
    assert set(content(near)) == expected and near.is_relative_to(disk)
    assert all((near / name).read_bytes() == (source / name).read_bytes() for name in expected)
    assert "to its own disk: done, 3.0 MB in 0 s.\n" in capsys.readouterr().err
    assert stage(source, disk, "2") == near and capsys.readouterr().err == ""
    assert stage(near, disk, "3") == near  # it is there already


def test_a_change_is_seen_by_the_next_start_and_by_it_alone(source: Path, disk: Path) -> None:
    near = stage(source, disk, "1")
    (source / "empty").write_text("full")
    assert stage(source, disk, "1") == near and (near / "empty").read_text() == ""
    again = stage(source, disk, "2")
    assert again != near and (again / "empty").read_text() == "full"


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz"])
@pytest.mark.parametrize("inside", ["", "pictures/"])
def test_an_archive_is_unpacked(picture_dir: Path, disk: Path, ending: str, inside: str) -> None:
    archive = disk.with_name(f"pictures{ending}")
    with tarfile.open(archive, "w:gz" if "z" in ending else "w") as tar:
        for name in ("train", "val"):
            tar.add(picture_dir / name, f"{inside}{name}")
    near = stage(archive, disk, "1")
    assert content(near) == {
        f"{n}/{k}": v for n in ("train", "val") for k, v in content(picture_dir / n).items()
    }
    assert stage(archive, disk, "2") == near


def test_an_archive_that_leads_out_or_is_broken_is_refused(tmp_path: Path, disk: Path) -> None:
    evil = tmp_path / "evil.tar"
    with tarfile.open(evil, "w") as tar:
        tar.add(__file__, "../../escaped")
    with pytest.raises(DataError, match=r"evil\.tar can't be unpacked here .*outside.*use data\.dir=FOLDER"):
        stage(evil, disk, "1")
    (tmp_path / "broken.tar").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"broken\.tar can't be unpacked here"):
        stage(tmp_path / "broken.tar", disk, "1")
    assert copies(disk) == set() and not (tmp_path / "escaped").exists()


def test_without_room_the_source_is_read(source, small_disk, capsys) -> None:
    assert stage(source, small_disk, "1") == source
    said = capsys.readouterr().err
    assert "source is not copied to the disk of this node, and is read where it is" in said
    assert "small has 1.0 MB free, and 3.0 MB are needed" in said
    assert stage(source, small_disk, "1") == source and copies(small_disk) == set()


def test_a_disk_that_fills_up_leaves_nothing(source, small_disk, monkeypatch) -> None:
    monkeypatch.setattr("train_anywhere.files.node_disk.find_lack", lambda *_: "")
    assert stage(source, small_disk, "1") == source and copies(small_disk) == set()


STAGE = (
    "import sys; from pathlib import Path; from train_anywhere.features.stage import stage\n"
    "print(stage(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]), flush=True)\n"
    "sys.stdin.readline()"
)


def begin(source: Path, disk: Path, start: str, program: str = STAGE) -> "subprocess.Popen[str]":
    return start_python("-c", program, source, disk, start, stdin=subprocess.PIPE)


def test_a_copy_that_was_killed_is_made_again(source: Path, disk: Path) -> None:
    """In its middle: one file is written, another one can't be read to its end, as from a disk that hangs."""
    os.mkfifo(source / "hangs")
    waits = "import os, shutil; os.path.isfile, copy = os.path.exists, shutil.copyfile\n"
    waits += "shutil.copyfile = lambda a, b: open(a) if a.name == 'hangs' else copy(a, b)\n"
    killed = begin(source, disk, "1", waits + STAGE)
    wait_until(lambda: [*shared_folder(disk).path.glob(".data-*/data/train/dog/dog.txt")], killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    [half] = copies(disk)
    assert half.startswith(".data-")
    (source / "hangs").unlink()
    near = stage(source, disk, "2")
    assert len(content(near)) == 4
    stage(source.parent / "outside", disk, "2")
    assert {name[0] for name in copies(disk)} == {"d"}, "what the killed one left is gone"


def test_two_processes_at_once_copy_once(source: Path, disk: Path) -> None:
    both = [begin(source, disk, "1") for _ in range(2)]
    said = [process.communicate("\n", timeout=60) for process in both]
    assert len({out for out, _ in said}) == 1 and said[0][0].startswith(str(disk))
    assert sorted(err.count("done") for _, err in said) == [0, 1]


def test_room_is_made_by_what_no_process_reads(source: Path, tmp_path: Path, small_disk: Path) -> None:
    (source / ".hidden").write_bytes(b"0" * 600_000)
    other = tmp_path / "other"
    shutil.copytree(source / "train" / "cat", other)
    (other / "large").write_bytes(b"1" * 600_000)
    reader = begin(source, small_disk, "1")
    assert reader.stdout and reader.stdout.readline().startswith(str(small_disk))
    assert stage(other, small_disk, "1") == other, "there is no room, and the first one is being read"
    reader.communicate("\n", timeout=30)
    near, _ = begin(other, small_disk, "2").communicate("\n", timeout=30)
    assert near.startswith(str(small_disk)) and len(copies(small_disk)) == 1


def test_each_data_set_reads_its_copy(mnist_dir: Path, tmp_path: Path, disk: Path) -> None:
    near = open_mnist(str(mnist_dir), False, lambda path: stage(path, disk, "1"))
    far = open_mnist(str(mnist_dir), False)
    rows = np.arange(len(far.train))
    for ours, theirs in zip(near.train.read(rows, 0, True), far.train.read(rows, 0, True), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert len(copies(disk)) == 1


def test_texts_are_read_from_a_copy_of_their_tokens(make_config, tmp_path, disk) -> None:
    words = [
        "data=text", "task=language_model", "model=gpt", f"data.cache={tmp_path}/cache", "data.stage=true",
    ]  # fmt: skip
    config = make_config(*words, f"cluster.local_disk={disk}")
    splits = open_splits(config.data, "lightning", 0, Features.of(config).stager)
    plain = open_splits(config.data, "lightning", 0)
    rows = np.arange(5)
    ours, theirs = splits.train.read(rows, 0, True), plain.train.read(rows, 0, True)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert len(copies(disk)) == 1
