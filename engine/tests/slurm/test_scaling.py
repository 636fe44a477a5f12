"""The timing table of a cluster: a job for each cell, read when all have ended."""

import csv
from pathlib import Path

import pytest

from engine.tests.slurm.login import Login

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root, pytest.mark.slow]


@pytest.mark.new_process
def test_a_grid_is_submitted_and_becomes_a_table(login: Login) -> None:
    grid = ["cluster=slurm", "nodes=1,2", "devices=1", "strategy=ddp", "launch=srun,mpirun"]
    size = ["trainer.max_epochs=5", "trainer.log_every_n_steps=5", "monitor.tensorboard=false"]
    words = [*grid, *size, "wait=true", f"paths.results={login.results}"]
    done = login.command("scaling", *words, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = (login.results / "scaling").iterdir()
    with open(folder / "scaling.csv") as file:
        rows = list(csv.DictReader(file))
    cells = [(r["nodes"], r["devices"], r["strategy"], r["launch"], r["state"]) for r in rows]
    assert cells == [
        ("1", "1", "single", "auto", "completed"),
        ("2", "1", "ddp", "mpirun", "completed"),
        ("2", "1", "ddp", "srun", "completed"),
    ], done.stdout
    assert all(float(r["rate"]) > 0 and float(r["seconds"]) > 0 for r in rows)
    for two in rows[1:]:
        speedup = float(two["rate"]) / float(rows[0]["rate"])
        assert float(two["speedup"]) == pytest.approx(speedup, rel=1e-3)
        assert 0 < float(two["waiting"]) < 1
    again = login.command("scaling", str(folder.relative_to(Path(login.folder))))
    assert again.returncode == 0 and again.stdout.splitlines()[0] in done.stdout
