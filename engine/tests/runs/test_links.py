"""Files that a run writes must be ordinary. Others may be anything."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import find_special_files, refuse_links

MakeRun = Callable[..., tuple[Config, RunDir]]


@pytest.fixture
def run(make_run: MakeRun) -> RunDir:
    run = make_run("model=mlp")[1]
    run.update(hosts=["n1"])
    return run


WRITTEN = [
    "steps", "jobs.txt", "bad_nodes", "report.html", "slurm-12.out", "slurm-12_3.err", "pbs-9.out", "job.sbatch",
    "monitor", "monitor/n7.csv", "monitor/ended", "debug/local-1-rank-0.txt", "ranks", "ranks/0.json",
    "tensorboard/events.out.tfevents.1.n1.2", "checkpoints/index.json", "checkpoints/stage.json", "wandb", "wandb/debug-cli.root.log2",
    "mlruns/0/ab/metrics/loss", "evaluations",
]  # fmt: skip


def planted(run: RunDir, name: str, target: Path) -> str:
    """Return the refusal of a run in which `name` is a link to `target`, or ""."""
    path = run.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = path.rename(run.path / "kept") if path.exists() else None
    path.symlink_to(target)
    try:
        refuse_links(run)
    except CheckpointError as refused:
        return str(refused)
    finally:
        path.unlink()
        if kept:
            kept.rename(path)
    return ""


@pytest.mark.parametrize("target", ["thesis.tex", "folder", "nothing"])
def test_a_link_is_refused(target: str, run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "thesis.tex").touch()
    refusals = {name: planted(run, name, tmp_path / target) for name in WRITTEN}
    says = f" is a link to {tmp_path / target}: a run continues in its own folder, so put what it leads to there."
    assert refusals == {name: f"{run.path / name}{says}" for name in WRITTEN}


def test_a_link_that_nothing_writes_to_stays(run: RunDir, tmp_path: Path) -> None:
    names = [
        *("notes.md", "code", "checkpoints/00000230-mine", "checkpoints/00000230", "tensorboard/baseline", "wandb/latest-run"),
        *("wandb/debug-internal.log", "wandb/offline-run-1/files/mine.txt", "evaluations/job-1/code/data"),
    ]  # fmt: skip
    assert {name: planted(run, name, tmp_path) for name in names} == dict.fromkeys(names, "")


def test_a_pipe_is_refused(run: RunDir) -> None:
    for name in ("steps", "monitor", "monitor/n1.csv", "checkpoints/newest"):
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(run.path / name)
        [problem] = find_special_files(run)
        assert problem.startswith(f"{run.path / name} is ") and problem.endswith("; move it away.")
        (run.path / name).unlink()


def test_a_folder_in_the_place_of_a_file(run: RunDir) -> None:
    (run.path / "steps").mkdir()
    (run.path / "metrics.csv").mkdir()  # which is kept under another name
    assert find_special_files(run) == [
        f"{run.path / 'steps'} is a folder, not an ordinary file; move it away."
    ]
