"""`make lightning-only` and `make keras-only` in a copy of the project: nothing speaks of the other, what is left is whole."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from src.files import ROOT
from tests.slurm.projects import commit, copy, run

pytestmark = pytest.mark.git

OTHER = {"lightning": "keras", "keras": "lightning"}
WORDS = {
    "lightning": r"keras|tensorflow|\btf[._]|mirrored|savedmodel",
    "keras": r"lightning|torch|\bddp\b|fsdp|\bdp\b|DataParallel|\bLitM",
}
"""What no file speaks of, where this framework is the one that stays."""
EXCEPT = {
    "tools/one_framework.py": "says how to remove either",
    "tools/one_framework_sides.py": "the same",
    "tools/one_framework_text.py": "the same",
    "tools/horovod_corrections.py": "corrects Horovod's own files, those of the other framework too",
    "tools/build_horovod.py": "switches the other framework off, by the names of Horovod's variables",
}


def only(project: Path, framework: str) -> subprocess.CompletedProcess[str]:
    return run(project, "make", "--no-print-directory", f"{framework}-only", f"PYTHON={sys.executable}")


@pytest.fixture(scope="module", params=list(OTHER))
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def project(framework: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With files that someone added before one framework was removed."""
    made = copy(tmp_path_factory.mktemp(framework))
    other = OTHER[framework]
    (made / f"src/tasks/{other}/mine.py").write_text("mine = 1\n")
    (made / "scripts").mkdir()
    (made / f"scripts/{other}.sh").write_text("echo keras torch\n")
    (made / "src/data/mine.py").write_text('NAMES = [\n    "keras",\n    "torch",\n]\n')
    assert "not committed" in only(made, framework).stderr
    commit(made)
    done = only(made, framework)
    assert done.returncode == 0, done.stderr
    assert f"removed  src/tasks/{other}/mine.py\n" in done.stdout
    commit(made)
    return made


def test_no_file_speaks_of_the_other(project: Path, framework: str) -> None:
    files = run(project, "git", "ls-files").stdout.split()
    speak = {
        name
        for name in files
        if re.search(WORDS[framework], f"{name}\n{text(project / name)}", re.IGNORECASE)
    }
    assert speak - EXCEPT.keys() == {f"scripts/{OTHER[framework]}.sh", "src/data/mine.py"}


def text(path: Path) -> str:
    """Empty for what is no text."""
    return path.read_text(errors="ignore") if path.suffix not in (".npz", ".png") else ""


def test_what_someone_added_elsewhere_is_as_it_was(project: Path, framework: str) -> None:
    assert (project / f"scripts/{OTHER[framework]}.sh").read_text() == "echo keras torch\n"
    assert (project / "src/data/mine.py").read_text().count("\n") == 4


def test_the_code_is_formatted_and_without_undefined_names(project: Path) -> None:
    done = run(project, str(Path(sys.prefix) / "bin" / "ruff"), "check", ".")
    assert done.returncode == 0, done.stdout
    done = run(project, str(Path(sys.prefix) / "bin" / "ruff"), "format", "--check", ".")
    assert done.returncode == 0, done.stdout


def test_a_second_time_there_is_nothing_to_do(project: Path, framework: str) -> None:
    done = only(project, framework)
    assert (done.returncode, done.stdout) == (0, f"This project has {framework} alone already.\n")
    done = run(project, sys.executable, "tools/one_framework.py", OTHER[framework])
    assert done.returncode == 2
    assert f"has no {OTHER[framework]} any more" in done.stderr
    assert not run(project, "git", "status", "--porcelain").stdout


def test_the_configuration_knows_one_framework(project: Path, framework: str) -> None:
    said = run(project, sys.executable, "src/train.py", "dry_run=true", "trainer.accelerator=cpu")
    assert re.search(rf"framework +{framework}", said.stdout), said.stdout + said.stderr
    said = run(project, sys.executable, "src/train.py", "dry_run=true", f"framework={OTHER[framework]}")
    assert said.returncode == 2
    assert f"framework='{OTHER[framework]}' is not {framework}." in said.stderr


@pytest.mark.slow
def test_types_are_right_and_every_test_is_found(project: Path) -> None:
    done = run(project, sys.executable, "-m", "mypy")
    assert done.returncode == 0, done.stdout
    done = run(project, sys.executable, "-m", "pytest", "-q", "--collect-only")
    assert done.returncode == 0, done.stdout[-2000:]


def test_without_git_nothing_is_done(tmp_path: Path) -> None:
    project = copy(tmp_path)
    shutil.rmtree(project / ".git")
    done = only(project, "lightning")
    assert "no checkout of git" in done.stderr and "Traceback" not in done.stderr
    assert (project / "src/training/keras/run.py").exists()


@pytest.mark.parametrize("named", ["lightnin", ""])
def test_another_name_is_refused(named: str) -> None:
    done = run(ROOT, sys.executable, "tools/one_framework.py", *named.split())
    assert done.returncode == 2
    assert "which framework stays? One of lightning, keras." in done.stderr
