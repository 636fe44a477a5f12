"""Only what is provably ours is removed, whatever a run folder or a link contains."""

import ast
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier

import pytest

from train_anywhere.files import ROOT, removal
from train_anywhere.files.removal import (
    MARKER,
    NotOwnedError,
    OwnedFolder,
    check_owned,
    make_owned,
    remove,
    remove_file,
    remove_in,
    temporary_name,
)


def place(root: Path, *names: str) -> OwnedFolder:
    return OwnedFolder(root, names or ("group", "folder"), "folder of run 7")


def listing(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of the user's."""
    folder = tmp_path / "precious"
    (folder / "papers").mkdir(parents=True)
    (folder / "papers" / "thesis.tex").write_text("years of work")
    (folder / "notes.txt").write_text("mine")
    return folder


@pytest.fixture(autouse=True)
def precious_stays(precious: Path) -> Iterator[None]:
    yield
    assert listing(precious) == ["notes.txt", "papers", "papers/thesis.tex"]


def test_what_was_made_here_is_removed(tmp_path: Path, precious: Path) -> None:
    ours = place(tmp_path)
    assert remove(ours)  # there is none
    make_owned(ours)
    (ours.path / "a" / "b").mkdir(parents=True)
    (ours.path / "a" / "b" / "file").write_text("x")
    (ours.path / "link").symlink_to(precious)
    make_owned(ours)  # it is ours, so it may be there
    assert remove(ours) and not ours.path.exists() and (tmp_path / "group").is_dir()


def test_a_folder_without_a_marker_or_with_another_one_stays(
    tmp_path: Path, precious: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = place(tmp_path, "precious")
    assert not remove(theirs) and not remove(theirs)
    assert (
        capsys.readouterr().err == f"{precious} is not removed: {precious} has no marker of this project.\n"
    )
    with pytest.raises(NotOwnedError, match="has no marker of this project"):
        make_owned(theirs)
    make_owned(place(tmp_path, "other"))
    assert not remove(OwnedFolder(tmp_path, ("other",), "folder of run 8"))
    assert "has the marker of another folder ('folder of run 7')" in capsys.readouterr().err


def test_no_link_is_followed_wherever_it_is(
    tmp_path: Path, precious: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_owned(place(tmp_path, "real", "folder"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "link").symlink_to(precious)
    for names in (("link", "folder"), ("real", "link"), ("link", "link")):
        assert not remove(place(tmp_path, *names))
        assert "is a symbolic link" in capsys.readouterr().err
        with pytest.raises(NotOwnedError, match="is a symbolic link"):
            make_owned(place(tmp_path, *names))
    assert (tmp_path / "real" / "folder" / MARKER).exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../precious", "group/folder"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotOwnedError, match="is not the name of a folder"):
        check_owned(place(tmp_path, name))
    assert not remove(place(tmp_path, name))


def test_a_marker_that_is_a_link_or_a_pipe_does_not_count(tmp_path: Path) -> None:
    ours = place(tmp_path)
    make_owned(ours)
    (ours.path / "file").write_text("x")
    marker = ours.path / MARKER
    for fake in (lambda: marker.symlink_to(tmp_path / "copy"), lambda: os.mkfifo(marker), marker.mkdir):
        marker.rename(tmp_path / "copy") if marker.is_file() else None
        fake()
        assert not remove(ours) and (ours.path / "file").exists()
        shutil.rmtree(marker) if marker.is_dir() and not marker.is_symlink() else marker.unlink()


def test_a_kill_at_any_moment_leaves_something_that_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call that removes or renames is a process's last one. The next process finishes."""
    calls = {"unlink": os.unlink, "rmdir": os.rmdir, "rename": os.rename}
    for moment in range(1, 12):
        ours, left = place(tmp_path), [moment]
        make_owned(ours)
        for name in ("one", "two"):
            (ours.path / name).mkdir()
            (ours.path / name / "file").write_text("x")

        def last(call: Callable[..., None], left: list[int] = left) -> Callable[..., None]:
            def counted(*arguments: object, **options: object) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                call(*arguments, **options)

            return counted

        with monkeypatch.context() as killed:
            for name, call in calls.items():
                killed.setattr(os, name, last(call))
            with suppress(KeyboardInterrupt):
                remove(ours, ".hidden")
        assert remove(ours) and remove(place(tmp_path, "group", ".hidden"))
        assert listing(tmp_path / "group") == []


@pytest.mark.parametrize("begun", ["", "folder of"])
def test_a_kill_while_a_folder_is_made_leaves_one_that_is_ours(tmp_path: Path, begun: str) -> None:
    ours = place(tmp_path)
    ours.path.mkdir(parents=True)
    if begun:
        (ours.path / MARKER).write_text(begun)
    check_owned(ours)
    make_owned(ours)
    assert (ours.path / MARKER).read_text() == "folder of run 7\n"
    assert remove(ours)


def test_processes_make_the_same_folder_at_the_same_time(tmp_path: Path) -> None:
    """All ranks of a node do, for their heartbeats: the first may add its file while the others look for the marker."""

    def make(rank: int) -> None:
        together.wait()
        make_owned(ours, private=True)
        remove_in(ours, f"rank-{rank}")
        (ours.path / f"rank-{rank}").touch()

    with ThreadPoolExecutor(8) as ranks:
        for number in range(100):
            ours, together = place(tmp_path, str(number)), Barrier(8)
            list(ranks.map(make, range(8)))
            assert len(listing(ours.path)) == 9


@pytest.mark.needs_root
def test_folders_of_others_and_mounted_disks_stay(
    tmp_path: Path,
    small_disk: Path,
    require: Callable[[object, str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    require(os.getuid() == 0, "run as root: the test gives a folder to another user")
    ours = place(tmp_path)
    make_owned(ours)
    (ours.path / "inner").mkdir()
    os.chown(ours.path / "inner", 12345, 12345)
    assert not remove(ours)
    assert f"{ours.path / 'inner'} belongs to another user" in capsys.readouterr().err
    os.chown(ours.path, 12345, 12345)
    with pytest.raises(NotOwnedError, match="belongs to another user"):
        check_owned(ours)
    on_disk = place(tmp_path, "small")
    (small_disk / MARKER).write_text("folder of run 7\n")
    assert not remove(on_disk)
    assert f"another disk is mounted on {small_disk}" in capsys.readouterr().err


def test_a_private_folder_is_this_users_alone(tmp_path: Path) -> None:
    ours = place(tmp_path)
    make_owned(ours, private=True)
    assert [p.stat().st_mode & 0o777 for p in (ours.path, ours.path.parent)] == [0o700, 0o700]
    ours.path.parent.chmod(0o777)
    with pytest.raises(NotOwnedError, match="others may write in"):
        make_owned(ours, private=True)


def test_only_files_of_this_process_are_removed(tmp_path: Path, precious: Path) -> None:
    mine = temporary_name(tmp_path / "run.json")
    mine.write_text("x")
    remove_file(mine)
    remove_file(mine)
    assert not mine.exists()
    for name in ("notes.txt", ".notes.txt", f".notes.{os.getpid()}0"):
        with pytest.raises(ValueError, match="not a temporary file of this process"):
            remove_file(precious / name)
    removal.remove_link(precious / "notes.txt")


# --- nothing else removes or renames ----------------------------------------------------------------------------------

REMOVES = {"rmtree", "unlink", "rmdir", "removedirs"}
RENAMES = {"rename", "renames"}
OF_MODULES = {"remove", "replace", "move"}  # also names of harmless methods
SHELL = re.compile(r"(?:^|[\s;&|(`'\"])(rm|rmdir|unlink|shred|mv)\s+[-\"'$\w/.{]|\s(-delete)\b")

OWNERS = {
    "engine/train_anywhere/files/removal.py": REMOVES | RENAMES,
    "engine/train_anywhere/files/atomic.py": RENAMES | {"replace"},
    # on another machine: files that the list of an earlier transfer there has, and what is in its .remote/
    "engine/train_anywhere/remote/sent_files.py": {"rm", "mv", "rmdir"},
    "engine/train_anywhere/remote/request_there.py": {"mv"},
    "engine/train_anywhere/remote/remote_command.py": {"unlink"},  # an empty record that this call has locked
}
"""Who may remove or rename what it names itself; everybody else asks these."""


def calls_that_remove(source: str) -> set[str]:
    """Return the names of removing or renaming calls and shell commands in a Python source."""
    found = {name for node in ast.walk(ast.parse(source)) for name in _named(node)}
    return found | _commands(source)


def _named(node: ast.AST) -> set[str]:
    modules = {"os", "posix", "shutil"}
    if isinstance(node, ast.ImportFrom) and node.module in modules:
        return {a.name for a in node.names} & (REMOVES | RENAMES | OF_MODULES)
    if isinstance(node, ast.Attribute):
        of_module = isinstance(node.value, ast.Name) and node.value.id in modules
        return {node.attr} & (REMOVES | RENAMES | (OF_MODULES if of_module else set()))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        one = len(node.args) == 1 and not node.keywords  # Path's; str's has two, that of dataclasses keywords
        return {node.func.attr} & {"replace"} if one else set()
    return (
        {node.value} & (REMOVES | {"rm"})
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        else set()
    )


def _commands(text: str) -> set[str]:
    lines = (line.split(" # ")[0] for line in text.splitlines() if not line.lstrip().startswith("#"))
    return {match[1] or match[2] for line in lines for match in SHELL.finditer(line)}


def sources() -> list[Path]:
    folders = ("src", "slurm", "hydra_plugins", "engine/train_anywhere")
    found = []
    for folder in folders:
        for at, below, files in os.walk(ROOT / folder):
            below[:] = [name for name in below if name != "__pycache__"]  # another process may be writing it
            found += [Path(at, name) for name in files]
    return [p for p in found if p.suffix in (".py", ".sh", ".j2", "")]


def test_nothing_else_removes_or_renames() -> None:
    read = {str(p.relative_to(ROOT)): p.read_text() for p in sources()}
    assert (
        len(read) > 100
        and "slurm/templates/slurm.sh.j2" in read
        and "engine/train_anywhere/slurm/ssh_by_srun/ssh" in read
    )
    found = {n: calls_that_remove(t) if n.endswith(".py") else _commands(t) for n, t in read.items()}
    assert {
        name: calls - OWNERS.get(name, set())
        for name, calls in found.items()
        if calls - OWNERS.get(name, set())
    } == {}
    assert {name for name, allowed in OWNERS.items() if not found[name] & allowed} == set()


def test_the_reader_of_sources_sees_what_removes() -> None:
    seen = {
        "import shutil\nshutil.rmtree(x)": "rmtree",
        "from shutil import rmtree as gone\ngone(x)": "rmtree",
        "import os\nos.remove(x)": "remove",
        "f = path.rmdir": "rmdir",
        "path.replace(other)": "replace",
        "getattr(shutil, 'rmtree')(x)": "rmtree",
        "run(['rm', '-rf', x])": "rm",
        "run(f'find {x} -delete', shell=True)": "-delete",
    }
    assert [bad for bad, name in seen.items() if name not in calls_that_remove(bad)] == []
    assert calls_that_remove("text.replace('a', 'b')\ndataclasses.replace(c, a=1)\nitems.remove(3)") == set()
    lines = ['rm -rf -- "$RUN"', "  rm $x", "a && rmdir b", "(mv a b)"]
    assert [line for line in lines if not _commands(line)] == []
    assert not _commands("srun --rm-something\n# rm -rf in a comment\nform -r\necho confirm")
