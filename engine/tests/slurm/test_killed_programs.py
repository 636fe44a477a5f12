"""Programs whose ranks are killed as at the memory limit: log, run.json and `status` agree."""

import re

import pytest

from engine.tests.slurm.login import Login, log, wait_for
from engine.tests.slurm.programs import script, submit
from tools.testing.weights import info
from train_anywhere.runs.folder import ATTEMPTS

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

WAITS = ("--epochs", "1000")


def processes(login: Login, node: str, pattern: str) -> list[str]:
    """Return the ids of the processes of a node whose command line matches."""
    return login.testbed.run(["pgrep", "-f", pattern], node=node).stdout.split()


@pytest.mark.parametrize(
    "what", ["[r]esumable.py --epochs", "^[^ ]+ -u [^ ]*[t]rain.py --run"], ids=["program", "rank"]
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_killed_rank_is_named_with_the_memory_limit(login: Login, what: str, nodes: int) -> None:
    """On two nodes the last rank is killed, and srun ends the first one. A killed srun comes back."""
    words = ("cluster=slurm", f"trainer.nodes={nodes}", "trainer.devices=1")
    job, run = submit(login, *words, "--", script("resumable.py"), *WAITS)
    wait_for(lambda: log(run).count("epoch 5/1000") == nodes, run, 90)
    found = processes(login, info(run)["hosts"][-1], what)
    assert found, log(run)
    login.testbed.run(["kill", "-KILL", *found], node=info(run)["hosts"][-1])
    assert login.testbed.wait_job(job, 60) == "FAILED", log(run)
    reason = info(run)[ATTEMPTS][-1]["reason"]
    assert info(run)["state"] == "failed" and "often the memory limit" in reason, info(run)
    assert "often the memory limit" in log(run)
    assert "often the memory limit" in login.jobs("status", job)
    assert "back to the queue" not in log(run) and not re.search("checkpoint saved", log(run))
