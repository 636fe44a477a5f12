"""The folders of the project and engine by command, current folder or TRAIN_ROOT."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.files import ENGINE, ROOT, with_engine

SHOW = "from train_anywhere.files import ENGINE, ROOT; print(ROOT, ENGINE)"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Another project, with nothing but what makes a folder one."""
    made = tmp_path / "another"
    (made / "configs").mkdir(parents=True)
    (made / "configs" / "train.yaml").touch()
    (made / "src").mkdir()
    (made / "src" / "show.py").write_text(SHOW)
    return made


def shown(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run Python with this engine on its path."""
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env={**with_engine(), **environ}, capture_output=True, text=True
    )


def test_the_folder_around_the_command(project: Path) -> None:
    done = shown(str(project / "src" / "show.py"), cwd=ROOT, TRAIN_ROOT=str(ROOT))
    assert done.stdout == f"{project} {ENGINE}\n", done.stderr


def test_the_current_folder_then_the_variable_then_a_folder_above(project: Path, tmp_path: Path) -> None:
    for words in (("-c", SHOW), ("-m", "train_anywhere.config.checks.strategy_table")):
        assert shown(*words, cwd=project, TRAIN_ROOT=str(ROOT)).returncode == 0
    assert shown("-c", SHOW, cwd=project, TRAIN_ROOT=str(ROOT)).stdout.startswith(f"{project} ")
    assert shown("-c", SHOW, cwd=project / "src", TRAIN_ROOT=str(ROOT)).stdout.startswith(f"{ROOT} ")
    assert shown("-c", SHOW, cwd=project / "src").stdout.startswith(f"{project} ")
    assert shown("-c", SHOW, cwd=tmp_path, TRAIN_ROOT="another").stdout.startswith(f"{project} ")


def test_without_a_project_it_is_one_message(tmp_path: Path) -> None:
    done = shown("-c", SHOW, cwd=tmp_path, TRAIN_ROOT="")
    assert done.returncode and "no project here" in done.stderr.splitlines()[-1]


def test_a_command_without_configs_and_one_without_an_engine(tmp_path: Path) -> None:
    """Each is one message and exit code 2."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    for script in ("train", "run", "jobs", "evaluate"):
        command = [sys.executable, "-S", tmp_path / "src" / f"{script}.py"]  # -S: without site-packages
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2, done.stderr
        assert done.stderr == "error: train_anywhere is not installed: run `make setup`.\n"
    done = shown(str(tmp_path / "src" / "train.py"), cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"{tmp_path}/configs" in done.stderr


@pytest.mark.new_process
def test_a_run_finds_the_engine_for_every_process_that_it_starts(tmp_path: Path) -> None:
    """Two ranks, their side process and its server of TensorBoard, with nothing on PYTHONPATH."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    words = ["model=mlp", "trainer.max_epochs=2", "trainer.devices=2", "monitor.serve=true"]
    words += ["monitor.sample_seconds=0.2", f"paths.results={tmp_path}"]
    command = [sys.executable, str(ROOT / "src" / "train.py"), *words]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("latest/monitor/*.csv"))) == 1
    assert "TensorBoard does not run" not in done.stdout + done.stderr
    assert "No module named" not in done.stdout + done.stderr


def test_programs_of_the_engine_run_the_same_engine() -> None:
    assert with_engine({"PYTHONPATH": f"a:{ENGINE}:b"}) == {"PYTHONPATH": f"{ENGINE}:a:b"}
    assert with_engine({}) == {"PYTHONPATH": str(ENGINE)}
