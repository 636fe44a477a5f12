"""Which engine the ranks of a job run: the one that submitted it, from the snapshot."""

import shutil
from pathlib import Path

import pytest

from engine.tests.slurm.login import SMALL, Login, log
from tools.testing import projects
from tools.testing.plugin import require_packages

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

WHERE = """
import os
import lightning.pytorch as pl
import train_anywhere

class Where(pl.Callback):
    def on_fit_start(self, trainer, module):
        print(f"engine of rank {trainer.global_rank}: {train_anywhere.__file__}", flush=True)
"""


@pytest.mark.parametrize("launch", ["srun", "torchrun", "mpirun", "horovodrun"])
@pytest.mark.quick("torchrun")
def test_every_rank_runs_the_engine_of_its_snapshot(
    login: Login, monkeypatch: pytest.MonkeyPatch, launch: str
) -> None:
    """The environment has no engine, and PYTHONPATH names none."""
    monkeypatch.setenv("PYTHONPATH", str(login.folder))
    (login.folder / "where.py").write_text(WHERE)
    size = ("trainer.nodes=2", "trainer.devices=2", f"launch={launch}")
    strategy = "strategy=horovod" if launch == "horovodrun" else "strategy=ddp"
    setup = f"cluster.setup=['export PYTHONPATH={login.folder}']"
    words = ("cluster=slurm", *SMALL, *size, strategy, setup, "callbacks.where._target_=where.Where")
    done = login.command("train", *words, "dry_run=true")
    require_packages(done.stderr)
    run = login.result(*words)
    engine = run.resolve() / "code" / "train_anywhere" / "__init__.py"
    lines = [
        line.partition("engine of rank ")[2] for line in log(run).splitlines() if "engine of rank " in line
    ]
    assert sorted(lines) == [f"{rank}: {engine}" for rank in range(4)], log(run)


@pytest.mark.slow
def test_an_update_while_a_job_waits_changes_nothing_of_it(login: Login, shared_dir: Path) -> None:
    project = projects.copy_project(shared_dir)
    other = Login(login.testbed, login.folder, project)
    job, run = other.submit(
        "cluster=slurm", *SMALL, "trainer.nodes=2", "trainer.devices=2", 'cluster.extra=["--hold"]'
    )
    (project / "engine" / "train_anywhere" / "__init__.py").write_text("raise RuntimeError('updated')\n")
    shutil.rmtree(project / "engine" / "train_anywhere" / "launch")
    assert login.testbed.run(["scontrol", "release", job]).returncode == 0
    assert login.testbed.wait_job(job, 240) == "COMPLETED", log(run)
