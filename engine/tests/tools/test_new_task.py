"""`make new-task` in a copy of the project writes only new files, whose test passes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.testing.projects import copy_project
from train_anywhere.files import ROOT

pytestmark = pytest.mark.git

NEW = """\
?? configs/data/mine_own.yaml
?? configs/experiment/mine_own.yaml
?? configs/task/mine_own.yaml
?? src/data/mine_own.py
?? src/tasks/keras/mine_own.py
?? src/tasks/lightning/mine_own.py
?? tests/tasks/keras/test_mine_own.py
?? tests/tasks/lightning/test_mine_own.py
"""


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copied = copy_project(tmp_path_factory.mktemp("fork"))
    made = run(copied, "make", "new-task", "NAME=mine_own", f"PYTHON={sys.executable}")
    assert made.returncode == 0, made.stderr
    assert "python src/train.py experiment=mine_own" in made.stdout
    return copied


def test_only_new_files(project: Path) -> None:
    assert run(project, "git", "status", "--short", "--untracked-files=all").stdout == NEW


@pytest.mark.parametrize("framework", ["lightning", pytest.param("keras", marks=pytest.mark.slow)])
def test_the_new_task_trains(project: Path, framework: str, tmp_path: Path) -> None:
    words = ("experiment=mine_own", f"framework={framework}", f"paths.results={tmp_path}")
    done = run(project, sys.executable, "src/train.py", *words, "trainer.max_epochs=2")
    assert done.returncode == 0, done.stderr
    assert "test/mae" in done.stdout


@pytest.mark.slow
def test_its_test_passes(project: Path) -> None:
    done = run(
        project, sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/tasks/lightning/test_mine_own.py"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


@pytest.mark.parametrize(
    "name, says",
    [
        ("", "name the task"),
        ("Mine", "small letters"),
        ("class", "small letters"),
        ("../x", "small letters"),
        ("regression", "exist already"),
    ],
)
def test_a_name_that_can_not_be_one(project: Path, name: str, says: str) -> None:
    before = run(project, "git", "status", "--short").stdout
    done = run(project, sys.executable, "tools/new_task.py", name)
    assert done.returncode == 2 and says in done.stderr
    assert run(project, "git", "status", "--short").stdout == before


def test_the_files_that_are_copied_exist() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from new_task import FILES
    finally:
        sys.path.pop(0)
    assert [source for source in FILES if not (ROOT / source).exists()] == []
