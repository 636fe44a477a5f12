"""The folder of the project, and paths that keep the links that the user typed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.testing.processes import run_python
from train_anywhere.files import ENGINE, ROOT, with_engine
from train_anywhere.files.root import resolve_as_typed, restore_links, shell_folder

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
    return run_python(*words, cwd=cwd, env={**with_engine(), **environ})


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
        done = run_python("-S", tmp_path / "src" / f"{script}.py", cwd=tmp_path, env=environ)
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
    done = run_python(str(ROOT / "src" / "train.py"), *words, cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("latest/monitor/*.csv"))) == 1
    assert "TensorBoard does not run" not in done.stdout + done.stderr
    assert "No module named" not in done.stdout + done.stderr


def test_programs_of_the_engine_run_the_same_engine() -> None:
    assert with_engine({"PYTHONPATH": f"a:{ENGINE}:b"}) == {"PYTHONPATH": f"{ENGINE}:a:b"}
    assert with_engine({}) == {"PYTHONPATH": str(ENGINE)}


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
    said = run_python(program.format(home=home), cwd=where, env={**os.environ, "PWD": where})
    assert said.stdout == f"{project}\n", said.stderr


def test_a_folder_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    in_folder(tmp_path / "gone", monkeypatch)
    (tmp_path / "gone").rmdir()
    assert resolve_as_typed(tmp_path) == tmp_path and shell_folder() == Path("/")
