"""A search on a real Slurm: an array whose trials are killed, pruned and requeued."""

import json
import re
from pathlib import Path

import pytest

from engine.tests.slurm.login import Login, log, set_step_seconds, wait_for
from tools.testing.weights import info
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.study import members

SEARCH = (
    "-m", "hydra/sweeper=optuna", "optimizer.lr=tag(log,interval(1e-5,1e-1))", "model=cnn,mlp", "hydra.sweeper.pruner=median",
    "hydra.sweeper.sampler=random",
)  # fmt: skip


@pytest.mark.slurm
@pytest.mark.needs_root
@pytest.mark.slow
def test_an_array_of_trials(login: Login, slow_steps: str, shared_dir: Path) -> None:
    """Twelve trials, four at once: one is killed, one requeued, and hopeless ones are pruned."""
    set_step_seconds(shared_dir, "0.4")
    words = (*SEARCH, "hydra.sweeper.n_trials=12", "hydra.sweeper.n_jobs=4", "cluster=slurm", slow_steps)
    shape = ("trainer.max_epochs=4", "monitor.tensorboard=false", "trainer.accelerator=cpu")
    said = login.train(*words, *shape)
    found = re.match(r"Submitted job (\d+) to slurm: 1 node, 1 rank, an array of 12\n", said)
    assert found, said
    job = found[1]
    [study] = [path.parent for path in login.results.glob("digits/*/study.json")]
    assert "#SBATCH --array=0-11%4" in (study / "job.sbatch").read_text()
    runs = members(study)
    assert [*runs] == [*range(12)]

    def started(run: RunDir) -> bool:
        return (run.checkpoints / "newest").exists()

    wait_for(lambda: started(runs[0]) and started(runs[1]), runs[0].path, 240)
    values = (runs[1].path / "trial.json").read_text()
    login.testbed.run(["scontrol", "requeue", f"{job}_1"])
    host = info(runs[0].path)["attempts"][-1]["hosts"][0]
    rank = f"^[^ ]*python -u [^ ]*train.py --run {runs[0].path}$"
    assert login.testbed.run(["pkill", "-KILL", "-f", rank], node=host).returncode == 0
    set_step_seconds(shared_dir, "0.05")
    wait_for(lambda: "trial 1 of 12: continues" in log(runs[1].path), runs[1].path, 240)
    wait_for(lambda: all(one.read_info()["state"] in ENDS for one in runs.values()), study, 500)
    states = [one.read_info()["state"] for one in runs.values()]
    assert states[0] == "failed" and states[1] != "failed", log(runs[0].path)
    assert "cancelled" in states and states.count("completed") >= 5, states
    pruned = runs[max(number for number, state in enumerate(states) if state == "cancelled")]
    assert pruned.read_info()["why"].startswith("pruned at its validation")
    assert "back to the queue" not in log(pruned.path) and started(pruned)
    # the requeued trial has kept its values
    assert (runs[1].path / "trial.json").read_text() == values and "trial 1 of 12: continues" in log(
        runs[1].path
    )
    proposed = [json.loads((one.path / "trial.json").read_text()) for one in runs.values()]
    assert sorted(one["number"] for one in proposed) == [*range(12)]
    assert len({one["values"]["optimizer.lr"] for one in proposed}) == 12
    shown = login.jobs("status", study.name)
    assert f"{study.name}-0   failed " in shown and "cancelled" in shown
    assert "Why:         pruned at its validation" in login.jobs("status", pruned.id)
    assert f"  {study.name}-" in login.jobs("best", study.name)
    assert "resubmit" in login.jobs("status", runs[0].id)


ENDS = ("completed", "failed", "cancelled")
