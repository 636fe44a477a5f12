"""Files are replaced in one step; links are not followed, pipes not waited for."""

import ast
import contextlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.files import ROOT
from train_anywhere.files.atomic import (
    claim,
    link_atomic,
    make_folder,
    move,
    open_file,
    replace,
    set_aside,
    write_atomic,
    write_with_backup,
)
from train_anywhere.files.removal import temporary_name


def link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("two years of work\n")
    path.symlink_to(tmp_path / "thesis.tex")


def dangling(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "new.txt")


def pipe(path: Path, tmp_path: Path) -> None:
    os.mkfifo(path)


def read_pipe(path: Path, tmp_path: Path) -> None:
    """A pipe that has a reader: opening it to write would succeed."""
    os.mkfifo(path)
    os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def unix_socket(path: Path, tmp_path: Path) -> None:
    with contextlib.chdir(path.parent):  # the name of a socket is short
        socket.socket(socket.AF_UNIX).bind(path.name)


def device(path: Path, tmp_path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))


def folder(path: Path, tmp_path: Path) -> None:
    path.mkdir()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("plant", [link, dangling, pipe, read_pipe, unix_socket, device, folder])
def test_anything_but_an_ordinary_file_is_refused(
    plant: Callable[[Path, Path], None], tmp_path: Path, require: Callable[[object, str], None]
) -> None:
    require(plant is not device or os.getuid() == 0, "run as root: the test makes a device")
    run = tmp_path / "run"
    run.mkdir()
    plant(run / "steps", tmp_path)
    for mode in ("rb", "ab", "wb"):
        with pytest.raises(FileExistsError, match=r"run/steps is a .*, not an ordinary file"):
            open_file(run / "steps", mode)  # type: ignore[arg-type]
    assert not (tmp_path / "new.txt").exists()
    if plant is link:
        assert (tmp_path / "thesis.tex").read_text() == "two years of work\n"


@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_a_second_name_keeps_its_content(mode: str, tmp_path: Path) -> None:
    (tmp_path / "user.csv").write_text("theirs\n")
    (tmp_path / "user.csv").chmod(0o640)
    os.link(tmp_path / "user.csv", tmp_path / "ours.csv")
    with open_file(tmp_path / "ours.csv", mode) as file:  # type: ignore[arg-type]
        file.write(b"new")
    assert (tmp_path / "user.csv").read_text() == "theirs\n"
    expected = {"ab": "theirs\nnew", "wb": "new"}
    assert (tmp_path / "ours.csv").read_text() == expected[mode]
    assert stat.S_IMODE((tmp_path / "ours.csv").stat().st_mode) == 0o640


@pytest.mark.parametrize("target", ["folder", "nothing"])
def test_a_folder_is_not_made_through_a_link(target: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "monitor").symlink_to(tmp_path / target)
    with pytest.raises(FileExistsError, match="monitor is a link, not an ordinary folder"):
        make_folder(tmp_path / "monitor")
    assert not (tmp_path / "nothing").exists()


def test_a_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "monitor").write_text("")
    with pytest.raises(FileExistsError, match="monitor is not a folder"):
        make_folder(tmp_path / "monitor")
    make_folder(tmp_path / "other")
    make_folder(tmp_path / "other")


# --- nothing else writes ----------------------------------------------------------------------------------------------

WRITES = {"write_text", "write_bytes", "mkdir", "makedirs", "touch", "truncate", "symlink_to", "hardlink_to"}
OF_MODULES = {"open", "link", "symlink", "mkfifo", "copy", "copy2", "copyfile", "copytree", "mkstemp"}

OUTSIDE = {
    "engine/train_anywhere/files/atomic.py": "it is what the others call; `link_atomic` makes results/latest",
    "engine/train_anywhere/files/removal.py": "folders entered name by name without links",
    "engine/train_anywhere/files/node_disk.py": "the node's own disk, in a folder of mode 700",
    "engine/train_anywhere/files/terminal/output.py": "/dev/null",
    "engine/train_anywhere/checkpoints/disk/manifest.py": "folders in the new folder of a checkpoint",
    "engine/train_anywhere/data/folders.py": "the data's folder, and the one above it",
    "engine/train_anywhere/features/stage.py": "the node's own disk",
    "src/data/text.py": "a new folder in the data's cache",
    "engine/train_anywhere/distributed/programs.py": "/dev/null",
    "engine/train_anywhere/monitor/heartbeat.py": "the node's memory, in a folder of mode 700",
    "engine/train_anywhere/features/hangs/stacks.py": "the node's memory, in a folder of mode 700",
    "engine/train_anywhere/runs/attempts.py": "O_EXCL; else a temporary file with a random name",
    "engine/train_anywhere/runs/folder.py": "the new run folder itself",
    "engine/train_anywhere/runs/lock.py": "O_EXCL",
    "engine/train_anywhere/runs/reopen/trust.py": "the user's own state",
    "engine/train_anywhere/inference/evaluate_run.py": "a file that the user names, with O_EXCL",
    "engine/train_anywhere/training/keras/checkpoint.py": "the new folder of a checkpoint, or an entry of an archive",
    "engine/train_anywhere/training/keras/loop/tensorboard.py": "O_EXCL",
    "engine/train_anywhere/training/lightning/checkpoint/contents.py": "the new folder of a checkpoint, reached without links",
    "engine/train_anywhere/data/shards/index.py": "the new folder of an index",
    "engine/train_anywhere/program/__init__.py": "the file of metrics of a program, as it would itself",
    "engine/train_anywhere/job/__main__.py": "a pipe of the batch script",
    "engine/train_anywhere/commands/new_cluster.py": "configs/, with O_EXCL",
    "engine/train_anywhere/files/copy_files.py": "a folder, to flush it, and a temporary file with a random name",
    "engine/train_anywhere/features/search.py": "the journal of a study, which Optuna writes",
    "engine/train_anywhere/commands/scaling.py": "the log of a cell, in the new folder of a table",
    "engine/train_anywhere/slurm/submission/snapshot.py": "the new folder of a snapshot, reached without links",
    "engine/train_anywhere/remote/connection.py": "a folder of mode 700 for sockets",
    "engine/train_anywhere/remote/remote_command.py": "the user's own state",
    "engine/train_anywhere/remote/sent_files.py": "the user's own state",
    "engine/train_anywhere/remote/request_there.py": "the new folder of a request",
    "engine/train_anywhere/commands/plot.py": "a new file that the user names",
    "engine/train_anywhere/commands/fetch.py": "the folder of the cache",
    "engine/train_anywhere/training/lightning/weights.py": "a new file or folder of an export",
    "engine/train_anywhere/training/lightning/compiled_code.py": "the folder of the cache, and the node's own disk",
    "engine/train_anywhere/config/command/compose.py": "a temporary folder with a random name",
    "engine/train_anywhere/plugins/anywhere.py": "Hydra's folder of a sweep, and the file of metrics of a program, as it would itself",
    "engine/train_anywhere/commands/submit_program.py": "a pipe of the process that submits",
}  # fmt: skip
"""Who opens or makes files on its own, and why no link of a run folder can lead it astray."""


def writes(source: str) -> list[str]:
    """The calls in a Python source that write or make something."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        of_module = isinstance(owner, ast.Name) and owner.id in ("os", "shutil", "tempfile")
        modes = [
            a.value for a in [*node.args, *(k.value for k in node.keywords)] if isinstance(a, ast.Constant)
        ]
        opens = name == "open" and any(
            isinstance(m, str) and set(m) & set("wax+") and len(m) < 4 for m in modes
        )
        if name in WRITES or (of_module and name in OF_MODULES) or opens:
            found.append(f"{name} in line {node.lineno}")
    return found


def test_nothing_else_writes_into_run_folders() -> None:
    sources = [
        p
        for top in ("src", "slurm", "hydra_plugins", "engine/train_anywhere")
        for p in (ROOT / top).rglob("*.py")
    ]
    found = {str(p.relative_to(ROOT)): writes(p.read_text()) for p in sources}
    known = tuple(OUTSIDE)
    assert {name: calls for name, calls in found.items() if calls and not name.startswith(known)} == {}
    assert [
        name for name in known if not any(calls for n, calls in found.items() if n.startswith(name))
    ] == []


def test_the_reader_of_sources_sees_what_writes() -> None:
    seen = (
        "(run.path / 'steps').write_text('4')",
        "run.jobs.open('ab')",
        "os.truncate(path, 3)",
        "shutil.copyfile(a, b)",
    )
    assert [line for line in seen if not writes(line)] == []
    assert not writes("open(path); path.read_text(); open_file(path, 'ab'); open(path, 'rb'); file.open('r')")


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
