"""The real client sends W&B's server one run without a gap."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.tests.training.tracking.conftest import Attempt, once
from engine.tests.training.tracking.wandb_server import Server, serving
from train_anywhere.training.tracking.wandb import STEP

ID = "20261120-101502-a1b2"
CHOSEN = ("loggers=wandb", "cluster.site.internet=true")
KEY = "0123456789" * 4


@pytest.fixture
def server() -> Iterator[Server]:
    """A stand-in for W&B's server."""
    with serving() as server:
        yield server


def logged(server: Server) -> Counter[tuple[str, int]]:
    """All points of the one run that there is."""
    (rows,) = server.runs.values()
    found = [json.loads(row) for row in rows]
    return Counter((n, row[STEP]) for row in found for n in row if n != STEP and not n.startswith("_"))


@pytest.mark.slow
def test_offline_attempts_are_synced_to_one_run(attempt: Attempt, server: Server, tmp_path: Path) -> None:
    run = tmp_path / ID
    attempt(run, 1, 30, "killed", "loggers=wandb")
    attempt(run, 21, 40, "preempted", "loggers=wandb")
    attempt(run, 41, 60, "completed", "loggers=wandb")
    environment = {**os.environ, "WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY, "HOME": str(tmp_path)}
    offline = [str(folder) for folder in run.glob("wandb/offline-run-*")]
    assert len(offline) == 3
    subprocess.run(
        [sys.executable, "-m", "wandb", "sync", *offline],
        check=True,
        env=environment,
        timeout=120,
        cwd=tmp_path,  # it writes logs where it is called
    )
    assert list(server.runs) == [ID]
    assert set(logged(server)) == set(once(60))  # the killed attempt's last steps are there twice


@pytest.mark.slow
@pytest.mark.parametrize("settle", ["0.3", "20"])
def test_online_attempts_go_on_where_the_server_is(attempt, server, tmp_path, settle) -> None:
    """The client sends every 15 seconds, so the next attempt sends a killed one's rest."""
    run, online = tmp_path / ID, {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}
    attempt(run, 1, 20, "preempted", *CHOSEN, **online)
    attempt(run, 21, 40, "killed", *CHOSEN, SETTLE=settle, **online)
    assert (("lr", 40) in logged(server)) == (settle == "20")
    attempt(run, 21, 60, "completed", *CHOSEN, **online)
    assert list(server.runs) == [ID]
    twice = [(n, s) for n in ("train/loss", "lr") for s in range(21, 41)] if settle == "20" else []
    assert logged(server) == once(60) + Counter(twice)


@pytest.mark.slow
def test_a_kill_before_the_test_loses_no_metrics(attempt: Attempt, server: Server, tmp_path: Path) -> None:
    """The test has the step of the last epoch, which the server has."""
    run, online = tmp_path / ID, {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}
    attempt(run, 1, 40, "killed", *CHOSEN, SETTLE="20", **online)
    assert ("lr", 40) in logged(server)
    attempt(run, 41, 40, "completed", *CHOSEN, **online)
    assert logged(server) == once(40)


@pytest.mark.slow
def test_the_server_is_away_for_an_attempt(attempt: Attempt, server: Server, tmp_path: Path) -> None:
    """The attempt is written into the run folder until the user syncs it."""
    run, online = tmp_path / ID, {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}
    attempt(run, 1, 20, "preempted", *CHOSEN, **online)
    attempt(run, 21, 40, "preempted", *CHOSEN, "loggers.wandb.offline=true")
    attempt(run, 31, 60, "completed", *CHOSEN, **online)
    assert logged(server) == once(60) - (once(30) - once(20))
