"""`hydra/launcher=anywhere` in a program without a project: dry runs, refusals, presets, verbs."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.hydra_app import write_app
from tools.testing.processes import run_python
from train_anywhere.files import ENGINE, ROOT, with_engine

DRY = ("-m", "hydra/launcher=anywhere", "hydra.launcher.dry_run=true")
Start = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_app(tmp_path / "program")


@pytest.fixture
def start(folder: Path) -> Start:
    def run(*words: str, code: int = 0, **environ: str) -> str:
        known = with_engine({**environ_without_root(), "HOME": str(folder / "home"), **environ})
        done = run_python(*words, cwd=folder, env=known)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


def environ_without_root() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "TRAIN_ROOT"}


@pytest.mark.parametrize("how", [("src/app.py",), ("-m", "src.app")])
def test_a_dry_run_shows_one_array_and_writes_nothing(start, folder, how):
    keys = (
        "cluster=neuron", "nodes=2", "devices=8", "comment=pytorch", "check=warn", "local_disk=/scratch", "results=/var/tmp/r",
    )  # fmt: skip
    shown = start(*how, *DRY, *(f"hydra.launcher.{key}" for key in keys), "lr=0.1,0.01")
    for line in ("--array=0-1", "--nodes=2", "--ntasks=16", "--gres=gpu:8", "--partition=amd_a100nv_8"):
        assert f"#SBATCH {line}\n" in shown
    assert "{args.member}" in shown and "builtins" not in shown
    assert {p.name for p in folder.iterdir()} <= {"src", "configs", "multirun", "home"}


def test_keys_of_another_launcher_and_wrong_values_are_one_message(start: Start) -> None:
    def refused(*words: str) -> str:
        return start("src/app.py", *DRY, *(f"hydra.launcher.{word}" for word in words), code=2)

    said = refused("timeout_min=60", "mem_gb=3", "submitit_folder=x", "stderr_to_stdout=true", "nods=2")
    meant = [f"hydra.launcher.{key}." for key in ("time", "mem", "results")]
    assert [one for one in (*meant, "leave it out", "'nodes'", "cluster is missing") if one not in said] == []
    said = refused("cluster=slurm", "nodes=x", "time=1-x")
    assert "hydra.launcher.nodes=x" in said and "hydra.launcher.time: '1-x' is" in said


def test_commands_of_the_page(start: Start) -> None:
    page = (ROOT / "docs" / "how-to" / "hydra-launcher.md").read_text()
    commands = [shlex.split(line) for line in page.splitlines() if line.startswith("python app.py ")]
    assert len(commands) == 2
    own = ("local_disk=/scratch", "check=warn", "comment=pytorch", "dry_run=true")
    for words in commands:
        shown = start("src/app.py", *words[2:], *(f"hydra.launcher.{word}" for word in own))
        assert "#SBATCH --array=0-1" in shown and "dry run: nothing was written" in shown


def test_own_presets(start: Start, folder: Path) -> None:
    """That next to the program hides that of the home folder, and a group `cluster` of the program is none."""
    preset = "# @package _global_\ndefaults: [slurm, _self_]\ncluster:\n  name: mine\n  partition: {}\n"
    files = {
        "src/conf/cluster/mine.yaml": preset.format("near"),
        "src/conf/cluster/slurm.yaml": "kind: of the program\n",
    }
    files["home/.config/train-anywhere/clusters/mine.yaml"] = preset.format("home")
    files["home/.config/train-anywhere/local/mine.yaml"] = "account: abc\n"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True) if not (folder / name).parent.is_dir() else None
        (folder / name).write_text(text)
    keys = ("cluster=mine", "local_disk=/scratch", "accelerator=cpu")
    words = (*DRY, *(f"hydra.launcher.{key}" for key in keys))
    shown = start("src/app.py", *words)
    assert "--partition=near" in shown and "--account=abc" in shown
    (folder / "src/conf/cluster/mine.yaml").unlink()
    assert "--partition=home" in start("src/app.py", *words)


def test_verbs_without_a_project(start: Start) -> None:
    said = start("-m", "train_anywhere", "status", code=2)
    assert said.startswith("error: there is no run in ") and "program/results" in said
    assert "no project here" in start("-m", "train_anywhere", "doctor", code=2)
    said = start("-m", "train_anywhere", "new-cluster", "slurm", "--local", "account=abc", code=2)
    assert "home/.config/train-anywhere/local/slurm.yaml" in said


def test_hydra_loads_nothing_of_the_engine_for_other_launchers(start: Start) -> None:
    code = "import sys, hydra_plugins.train_anywhere_launcher; print(*sorted(m for m in sys.modules if m.startswith('train_anywhere')))"
    assert start("-c", code) == "train_anywhere train_anywhere.plugins train_anywhere.plugins.anywhere\n"


def test_a_submission_needs_only_the_base_install(start: Start, folder: Path) -> None:
    heavy = ("numpy", "PIL", "tensorboard", "torch", "lightning", "tensorflow", "keras", "matplotlib")
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({heavy}))\n")
    words = ("hydra.launcher.cluster=slurm", "hydra.launcher.local_disk=/scratch", "lr=1,2")
    assert "--array=0-1" in start("src/app.py", *DRY, *words, PYTHONPATH=str(folder))
    said = start("-m", "train_anywhere", "list", code=2, PYTHONPATH=str(folder))
    assert said.startswith("error: there is no run in ")


def test_templates_of_the_package_are_those_of_the_project() -> None:
    bare = ENGINE / "train_anywhere/program/bare"
    for top in ("slurm/templates", "configs/container"):
        for file in (ROOT / top).glob("*.*"):
            assert file.read_text() == (bare / top / file.name).read_text(), file
