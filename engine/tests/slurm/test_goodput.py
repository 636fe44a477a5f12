"""Goodput of real jobs against Slurm's times and planned delays and losses."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from engine.tests.slurm.login import Login, log, steps, wait_for
from tools.testbed.testbed_cluster import Testbed
from tools.testing.weights import info
from train_anywhere.monitor.run_facts import read_facts
from train_anywhere.monitor.verdicts import goodput
from train_anywhere.runs.folder import open_run

# not parallel: it compares shares of the time with those by hand
pytestmark = [pytest.mark.slurm, pytest.mark.needs_root, pytest.mark.slow, pytest.mark.alone]

STEP_S, LATE_S = 0.05, 0.1
LATE = """
import os, pathlib, time
import lightning.pytorch as pl

late, slept = (pathlib.Path(__file__).with_name(name) for name in ("late_seconds", "slept_seconds"))

class Late(pl.Callback):
    def on_train_batch_start(self, *args):
        time.sleep({step})
        if os.environ["SLURM_PROCID"] == "1" and (seconds := float(late.read_text())):
            began = time.monotonic()
            time.sleep(seconds)
            with slept.open("a") as file:
                print(time.monotonic() - began, file=file)
"""


class Clock:
    """A clock of the time that jobs have run according to Slurm."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed
        self.last: dict[str, float] = {}
        self.over = threading.Event()

    def look(self) -> None:
        while not self.over.wait(0.3):
            now, shown = time.time(), self.testbed.run(["scontrol", "show", "jobs", "--oneliner"]).stdout
            for line in shown.splitlines():
                if "JobState=RUNNING" in line and (found := re.search(r"StartTime=(\S+)", line)):
                    self.last[found[1]] = now

    @property
    def seconds(self) -> float:
        return sum(last - datetime.fromisoformat(start).timestamp() for start, last in self.last.items())


@contextmanager
def clock(testbed: Testbed) -> Iterator[Clock]:
    made = Clock(testbed)
    thread = threading.Thread(target=made.look)
    thread.start()
    try:
        yield made
    finally:
        made.over.set()
        thread.join()


def newest(run: Path) -> int:
    return max(steps(run), default=0)


def test_goodput_of_a_slow_rank_a_requeue_and_a_crash(
    login: Login, shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = shared_dir / "late_seconds"
    late.write_text(str(LATE_S))
    (shared_dir / "late.py").write_text(LATE.format(step=STEP_S))
    monkeypatch.setenv("PYTHONPATH", str(shared_dir))  # a submission looks for the callback too
    words = [
        "cluster=slurm", "trainer.nodes=2", "trainer.devices=1", "strategy=ddp", "model=mlp", "callbacks.late._target_=late.Late",
        "checkpoint.every_n_steps=100", "checkpoint.every_n_epochs=100000", "checkpoint.keep_last=50", "monitor.tensorboard=false",
        "trainer.max_epochs=100000", "trainer.max_steps=2500", "trainer.limit_val_batches=0", "trainer.log_every_n_steps=5",
        f'cluster.setup=["export PYTHONPATH={shared_dir}"]',
    ]  # fmt: skip
    with clock(login.testbed) as by_slurm:
        job, run = login.submit(*words)
        wait_for(lambda: newest(run) >= 300, run, 300)
        late.write_text("0")
        slow_steps = newest(run)
        wait_for(
            lambda: newest(run) >= slow_steps + 1100, run, 300
        )  # rank 0 looks at the others every minute
        login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
        wait_for(lambda: len(info(run)["attempts"]) > 1 and "from_step" in info(run)["attempts"][1], run, 120)
        second = info(run)["attempts"][1]["from_step"]
        goal = second - second % 100 + 180
        wait_for(lambda: newest(run) >= goal, run, 120)
        process = login.testbed.run(
            ["pgrep", "-f", r"train\.py --run"], node=info(run)["hosts"][1]
        ).stdout.split()[-1]
        login.testbed.run(["kill", "-KILL", process], node=info(run)["hosts"][1])
        assert login.testbed.wait_job(job, 120) == "FAILED", log(run)
        again = re.match(r"Submitted job (\d+)", login.jobs("resubmit", run.name))
        assert again and login.testbed.wait_job(again[1], 300) == "COMPLETED", log(run)
    parts = read_facts(open_run(run)).attempts
    found = goodput(parts)
    assert found and [p["ended_by"] for p in parts] == ["SIGUSR1", "failed", "completed"]
    lost_steps = parts[1]["step"] - parts[2]["from_step"]
    spent = parts[1]["seconds"]["step"]
    by_hand = {
        "slow": sum(map(float, (shared_dir / "slept_seconds").read_text().split())),
        "lost": spent * lost_steps / (parts[1]["step"] - parts[1]["from_step"]),
    }
    assert sum(found.seconds.values()) == pytest.approx(found.whole, rel=0.001)
    assert found.whole == pytest.approx(by_slurm.seconds, rel=0.02)
    assert found.seconds["unknown"] < 0.02 * found.whole
    assert found.seconds["slow"] == pytest.approx(by_hand["slow"], rel=0.15)
    assert found.seconds["lost"] == pytest.approx(by_hand["lost"], rel=0.05)
    assert f"{lost_steps} steps lost" in login.jobs("status", run.name)
    assert json.loads((run / "run.json").read_text())["state"] == "completed"
