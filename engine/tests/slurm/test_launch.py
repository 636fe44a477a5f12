"""From the command line to a scheduler that only records its arguments."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from engine.tests.slurm.scripts import tool
from tools.testing.processes import run_python
from train_anywhere.files import ROOT

Submit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def sbatch(tmp_path: Path) -> Path:
    """Return a folder with an sbatch that records in `asked`, and an empty queue."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tool(folder / "sbatch", f'echo sbatch "$@" >>{tmp_path}/asked; echo 1234')
    tool(folder / "squeue", "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    return folder


@pytest.fixture
def submit(train: Submit, sbatch: Path, results: Path) -> Submit:
    """`submit("cluster=slurm")`: the command line with that sbatch first on PATH."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        flags = [a for a in arguments if a.startswith("-")]
        overrides = [a for a in arguments if not a.startswith("-")]
        path = {"PATH": f"{sbatch}:{os.environ['PATH']}"}
        return train(*flags, *overrides, f"paths.results={results}", env={**path, **(env or {})})

    return run


def asked(results: Path) -> list[str]:
    path = results.parent / "asked"
    return path.read_text().splitlines() if path.exists() else []


def runs(results: Path) -> list[Path]:
    return sorted(p.parent for p in results.glob("*/*/config.yaml"))


def test_a_submission_says_what_comes_next(submit: Submit, results: Path) -> None:
    done = submit("cluster=slurm", "strategy=ddp", "trainer.devices=2", "seed=7")
    assert done.returncode == 0, done.stderr
    [run] = runs(results)
    for word in ("Submitted job 1234", str(run), "slurm-1234.out", "src/jobs.py status", "logs -f", "cancel"):
        assert word in done.stdout
    assert asked(results) == [f"sbatch --parsable {run}/job.sbatch"]
    assert yaml.safe_load((run / "config.yaml").read_text())["seed"] == 7
    assert "seed=7" in (run / "overrides.txt").read_text().split()
    assert (run / "jobs.txt").read_text() == "1234\n"
    assert (run / "code" / "src" / "train.py").read_text() == (ROOT / "src" / "train.py").read_text()
    info = json.loads((run / "run.json").read_text())
    assert (info["state"], info["world_size"], info["cluster"]) == ("queued", 2, "slurm")
    assert (results / "latest").resolve() == run


@pytest.mark.parametrize("words", [["cluster=slurm"], ["-m", "cluster=slurm", "seed=1,2"]])
def test_what_comes_next_works_as_printed_from_another_folder(
    submit: Submit,
    sbatch: Path,
    results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    done = submit(*words)
    tool(sbatch / "squeue", "echo '1234|PENDING'; echo '1234_0|PENDING'; echo '1234_1|PENDING'")
    printed = next(
        line.removeprefix("Next:") for line in done.stdout.splitlines() if line.startswith("Next:")
    )
    assert "--results results" in printed
    path = f"{sbatch}:{os.environ['PATH']}"
    again = subprocess.run(["sh", "-c", printed], env={**os.environ, "PATH": path}, capture_output=True)
    waiting = re.findall(rb"  pending  .*job 1234", again.stdout)
    assert (again.returncode, len(waiting)) == (0, len(runs(results)))


def test_a_dry_run_is_offline_and_writes_nothing(train: Submit, results: Path, tmp_path: Path) -> None:
    done = train(
        "cluster=neuron", "trainer.nodes=4", "dry_run=true", f"paths.results={results}", env={"PATH": "/none"}
    )
    assert done.returncode == 2
    assert "#SBATCH --gres=gpu:8" in done.stdout
    assert "ranks       32\n" in done.stdout
    assert "batch       96 in all, 3 per rank" in done.stdout
    assert "dry run: nothing was written or submitted." in done.stdout
    assert done.stderr.startswith(
        "error: neuron rejects jobs without comment: cluster.comment is not set; use"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_scheduler_refuses_and_nothing_is_left(submit: Submit, sbatch: Path, results: Path) -> None:
    submit("cluster=slurm")
    [before] = runs(results)
    tool(sbatch / "sbatch", 'echo "sbatch: error: Invalid account" >&2\nexit 1')
    done = submit("cluster=slurm")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: sbatch refused the job: sbatch: error: Invalid account"
    assert [p.name for p in before.parent.iterdir()] == [before.name]
    assert (results / "latest").resolve() == before


def test_a_sweep_is_one_array_of_run_folders(submit: Submit, results: Path) -> None:
    done = submit("-m", "cluster=slurm", "seed=1,2,3", "cluster.max_running=2")
    assert done.returncode == 0, done.stderr
    assert len(asked(results)) == 1
    members = runs(results)
    assert [yaml.safe_load((m / "config.yaml").read_text())["seed"] for m in members] == [1, 2, 3]
    base = members[0].with_name(members[0].name[:-2])
    script = (base / "job.sbatch").read_text()
    assert "#SBATCH --array=0-2%2" in script
    assert f"#SBATCH --output={base}-%a/slurm-%A_%a.out" in script
    assert f'RUN={base}-"$SLURM_ARRAY_TASK_ID"' in script
    assert [(m / "jobs.txt").read_text() for m in members] == ["1234_0\n", "1234_1\n", "1234_2\n"]


def test_a_sweep_over_what_the_scheduler_sees_is_refused(submit: Submit, results: Path) -> None:
    done = submit("-m", "cluster=slurm", "strategy=ddp", "trainer.devices=1,2")
    assert done.returncode == 2
    assert "these differ in devices, ranks" in done.stderr or "ranks" in done.stderr
    assert not results.exists()


def test_a_sweeper_that_needs_results_is_refused(submit: Submit, tmp_path: Path) -> None:
    own_file = f"hydra.sweep.dir={tmp_path}"  # Hydra's own sweeper writes a multirun.yaml before it launches
    done = submit("-m", "cluster=slurm", "seed=1,2", "hydra/sweeper=basic", own_file)
    assert done.returncode == 2
    assert "wait=true" in done.stderr


def test_resume_submits_again_into_the_same_folder(submit: Submit, results: Path) -> None:
    submit("cluster=slurm", "trainer.max_epochs=3")
    [run] = runs(results)
    done = submit(f"resume={run}", "trainer.max_epochs=5")
    assert done.returncode == 0, done.stderr
    assert runs(results) == [run]
    assert yaml.safe_load((run / "config.yaml").read_text())["trainer"]["max_epochs"] == 5
    assert (run / "jobs.txt").read_text() == "1234\n1234\n"
    assert f"CODE={run}/code-2" in (run / "job.sbatch").read_text()  # an earlier job may still read code/


def test_two_submissions_in_the_same_second_do_not_share_a_folder(
    submit: Submit, sbatch: Path, results: Path
) -> None:
    command = [sys.executable, str(ROOT / "src" / "train.py"), "cluster=slurm", f"paths.results={results}"]
    environ = {**os.environ, "PATH": f"{sbatch}:{os.environ['PATH']}"}
    both = [subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [p.wait(60) for p in both] == [0, 0]
    assert len(runs(results)) == 2


def test_a_submission_loads_no_framework(sbatch: Path, results: Path) -> None:
    environ = {**os.environ, "PATH": f"{sbatch}:{os.environ['PATH']}"}
    words = ("-X", "importtime", "src/train.py", "cluster=slurm", f"paths.results={results}")
    done = run_python(*words, env=environ)
    assert "Submitted job 1234" in done.stdout
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert not loaded & {"torch", "tensorflow", "lightning", "keras", "scipy", "numpy", "sklearn", "rich"}


def test_a_submission_composes_no_more_often_than_hydra_does(results: Path) -> None:
    """Hydra composes for its mode and its launcher. A third time would be slow on login nodes."""
    program = (
        "import runpy, sys\n"
        "from hydra._internal.config_loader_impl import ConfigLoaderImpl as Loader\n"
        "composed, compose = [], Loader._load_configuration_impl\n"
        "Loader._load_configuration_impl = lambda *of, **more: composed.append(1) or compose(*of, **more)\n"
        "try: runpy.run_path(sys.argv.pop(0) and sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end: print('exit', end.code)\n"
        "print('composed', len(composed))\n"
    )
    arguments = ["cluster=slurm", "dry_run=true", f"paths.results={results}"]
    done = run_python("-c", program, str(ROOT / "src" / "train.py"), *arguments)
    assert done.stdout.splitlines()[-2:] == ["exit 0", "composed 2"], done.stdout + done.stderr
