"""Folders that can't hold a run are refused by a check that makes nothing."""

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.config.paths import results_problems, write_problem

NOBODY = 65534


def test_a_folder_that_can_be_made(tmp_path: Path) -> None:
    assert results_problems(tmp_path / "a" / "b", "digits") == []
    assert list(tmp_path.iterdir()) == []


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a dangling link": (lambda results: results.symlink_to("/gone"), "is a link to /gone, which does not exist"),
    "a loop": (lambda results: results.symlink_to(results), "which does not exist"),
    "a file": (lambda results: results.touch(), "results is a file, not a folder"),
    "a name that is a dangling link": (
        lambda results: (results.mkdir(), (results / "digits").symlink_to("/gone")), "digits is a link to /gone, which does not exist"),
    "a name that is a file": (lambda results: (results.mkdir(), (results / "digits").touch()), "digits is a file, not a folder"),
    "latest is a folder": (
        lambda results: (results / "latest").mkdir(parents=True), "latest is a folder where the link to the newest run belongs, rename it"),
    "latest is a file": (
        lambda results: (results.mkdir(), (results / "latest").touch()), "latest is a file where the link to the newest run belongs"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_each_obstacle_is_one_sentence(tmp_path: Path, case: str) -> None:
    make, says = BAD[case]
    make(tmp_path / "results")
    [problem] = results_problems(tmp_path / "results", "digits")
    assert problem.startswith(f"paths.results={tmp_path}/results: ")
    assert says in problem and problem.endswith("; use paths.results=FOLDER.")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_invalid_paths(tmp_path: Path, name: str) -> None:
    [problem] = results_problems(tmp_path / name, "digits")
    assert "can't be used (" in problem


def test_a_dangling_link_to_the_newest_run_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("digits/gone")
    assert results_problems(tmp_path, "digits") == []


def test_a_full_disk(small_disk: Path) -> None:
    assert write_problem(small_disk) == ""
    (small_disk / "filler").write_bytes(b"x" * (1000 << 10))
    assert write_problem(small_disk / "new") == f"the disk of {small_disk} is full"


def test_a_disk_that_is_read_only(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert write_problem(small_disk / "new") == f"you can't write to {small_disk}"


@pytest.mark.parametrize(("mode", "fine"), [(0o000, False), (0o300, False), (0o500, False), (0o700, True)])
def test_permissions_of_a_folder(mode: int, fine: bool) -> None:
    """As another user, because root may do all."""
    folder = Path(tempfile.mkdtemp())
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    folder.chmod(mode)
    child = os.fork()
    if child == 0:
        os.setuid(NOBODY if os.getuid() == 0 else os.getuid())
        found = results_problems(folder / "results", "digits")
        as_expected = found == [] if fine else len(found) == 1 and "you can't write to" in found[0]
        os._exit(0 if as_expected else 1)
    _, status = os.waitpid(child, 0)
    folder.rmdir()
    assert status == 0
