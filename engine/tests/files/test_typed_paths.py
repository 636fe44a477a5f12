"""Paths keep the links that the user sees. Nodes without them are in slurm/test_home.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.files import ENGINE, ROOT
from train_anywhere.files.root import resolve_as_typed, restore_links, shell_folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder that is a link to another one. proj/src is that of this project."""
    (tmp_path / "export" / "u" / "proj" / "results" / "a" / "run").mkdir(parents=True)
    (tmp_path / "export" / "u" / "proj" / "src").symlink_to(ROOT / "src")
    (tmp_path / "export" / "u" / "proj" / "results" / "latest").symlink_to("a/run")
    (tmp_path / "homes").mkdir()
    (tmp_path / "homes" / "u").symlink_to("../export/u")
    return tmp_path / "homes" / "u"


def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, pwd: Path | None = None) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PWD", str(pwd or folder))


def test_a_link_above_a_path_stays_and_one_at_its_end_is_followed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = home / "proj" / "results" / "a" / "run"
    assert resolve_as_typed(home / "proj" / "results" / "latest") == run
    in_folder(home / "proj", monkeypatch)
    assert [resolve_as_typed(p) for p in ("results/latest", "results/../results/a/run")] == [run, run]
    assert resolve_as_typed(run.resolve()) == run  # by the shell's folder
    assert resolve_as_typed("new/folder") == home / "proj" / "new" / "folder"
    assert restore_links(run.resolve().parent / "latest") == run.parent / "latest"
    in_folder(home / "proj" / "results" / "latest", monkeypatch)
    assert resolve_as_typed(".") == run


def test_a_results_folder_on_another_disk_keeps_its_name(home: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch" / "a" / "run").mkdir(parents=True)
    (home / "proj" / "link").symlink_to(tmp_path / "scratch")
    assert resolve_as_typed(home / "proj" / "link" / "a" / "run") == home / "proj" / "link" / "a" / "run"


def test_the_shell_s_folder_counts_only_if_it_is_the_present_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = home.resolve()
    for pwd in (real.parent, Path("proj"), Path("/nowhere")):
        in_folder(home, monkeypatch, pwd)
        assert shell_folder() == real and resolve_as_typed("proj") == real / "proj"


def test_without_links_a_path_is_where_it_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_folder(tmp_path, monkeypatch)
    assert resolve_as_typed("a/../b") == tmp_path / "b"
    (tmp_path / "loop").symlink_to("loop")
    assert resolve_as_typed("loop") == tmp_path / "loop"


@pytest.mark.parametrize(
    ("folder", "program"), [("proj", "src/t.py"), ("proj/bin", "../src/t.py"), ("/", "{home}/proj/src/t.py")]
)
def test_the_project_s_folder_is_as_it_was_typed(home: Path, folder: str, program: str) -> None:
    project = home / "proj"
    (project / "src").unlink()
    for folder_ in ("src", "bin", "configs"):
        (project / folder_).mkdir()
    (project / "configs" / "train.yaml").touch()
    (project / "engine").symlink_to(ENGINE)
    start = "import sys; from pathlib import Path; sys.path[0] = str(Path(__file__).resolve().parents[1] / 'engine')"
    (project / "src" / "t.py").write_text(f"{start}; from train_anywhere.files import ROOT; print(ROOT)")
    where = str(home / folder)
    command = [sys.executable, program.format(home=home)]
    said = subprocess.run(
        command, cwd=where, env={**os.environ, "PWD": where}, capture_output=True, text=True
    )
    assert said.stdout == f"{project}\n", said.stderr


def test_a_folder_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    in_folder(tmp_path / "gone", monkeypatch)
    (tmp_path / "gone").rmdir()
    assert resolve_as_typed(tmp_path) == tmp_path and shell_folder() == Path("/")
