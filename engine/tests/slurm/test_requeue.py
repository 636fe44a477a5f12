"""Real jobs are stopped and started again: one run folder, one curve, nothing lost."""

import os
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.tests.slurm.login import (
    EACH_STEP,
    Login,
    check_curve,
    log,
    set_step_seconds,
    steps,
    trained,
    wait_for,
)
from tools.testbed.testbed_cluster import Testbed
from tools.testing.frameworks import PAGES
from tools.testing.weights import final_weights, info, largest_difference
from train_anywhere.files import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

TRILLIUM = (
    "cluster.account=def-pi", "cluster.modules=[]", "cluster.local_disk=/tmp", "cluster.site.submit_below=[]",
    "cluster.site.write_below=[]",
)  # fmt: skip
"""Its file systems and modules are not here."""


@pytest.mark.parametrize(
    "words",
    [
        ["launch=srun", "trainer.nodes=2", "trainer.devices=1"],
        *(
            pytest.param([*words, "trainer.nodes=2", "trainer.devices=1"], marks=pytest.mark.slow)
            for words in (
                ["launch=torchrun"],
                ["launch=mpirun"],
                ["launch=horovodrun", "strategy=horovod"],
                ["framework=keras", "launch=srun"],
            )
        ),
    ],
    ids=lambda words: "-".join(w.split("=")[1] for w in words),
)
def test_a_job_that_is_told_to_stop_requeues_itself_and_goes_on(login: Login, words: list[str]) -> None:
    small = ["model=mlp", "trainer.max_epochs=30", "monitor.tensorboard=false"]
    job, run = login.submit("cluster=slurm", *words, *small)
    wait_for(lambda: "epoch 2/30" in log(run), run, 120)
    login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
    wait_for(lambda: "back to the queue" in log(run), run, 60)
    assert login.testbed.wait_job(job, 200) == "COMPLETED", log(run)
    assert info(run)["restarts"] == 1
    assert "resumed 1 time, 0 steps lost" in login.jobs("status", job)
    assert steps(run) == sorted(steps(run))  # one curve
    assert not PAGES.search(log(run)), log(run)
    assert not (run / "debug").exists()


@pytest.mark.slow
@pytest.mark.long
def test_early_signals_of_many_kills_bring_a_job_back_once_each(login: Login) -> None:
    """`scancel` sends USR1 in the first 5 s of each start. Cancelled jobs stay away."""
    count, at_once = max(1, int(os.environ.get("CHAOS_KILLS", "8")) // 4), 4
    program = str(ROOT / "examples" / "programs" / "resumable.py")
    keys = (
        "cluster=slurm", "trainer.devices=1", "trainer.accelerator=cpu", "cluster.cpus_per_task=1", "cluster.mem=500M",
    )  # fmt: skip
    words = (*keys, f"paths.results={login.results}", "--", program, "--epochs", "100000", "--seconds", "0.1")

    def ask(job: str) -> tuple[str, int]:
        shown = login.testbed.run(["scontrol", "show", "job", "--oneliner", job]).stdout
        found = re.search(r"\bJobState=(\w+).*\bRestarts=(\d+)|\bRestarts=(\d+).*\bJobState=(\w+)", shown)
        assert found, shown
        return found[1] or found[4], int(found[2] or found[3])

    def signal_each_start(job: str) -> list[float]:
        moments = []
        for number in range(count):
            wait_for(lambda number=number: ask(job) == ("RUNNING", number), login.folder, 120)
            moments.append(random.uniform(0.2, 5))
            time.sleep(moments[-1])
            login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
        wait_for(lambda: ask(job) == ("RUNNING", count), login.folder, 120)
        return moments

    jobs = []
    for _ in range(at_once):
        done = login.command("run", *words)
        jobs += re.findall(r"^Submitted job (\d+)", done.stdout)
    assert len(jobs) == at_once
    with ThreadPoolExecutor(at_once) as threads:
        moments = [moment for found in threads.map(signal_each_start, jobs) for moment in found]
    login.testbed.run(["scancel", *jobs])
    time.sleep(10)
    print(
        f"{len(moments)} starts, {sum(moment < 1 for moment in moments)} of them got a signal in the first second"
    )
    assert [ask(job) for job in jobs] == [("CANCELLED", count)] * at_once


@pytest.mark.slow
def test_a_time_limit_that_is_too_short(login: Login, slow_steps: str) -> None:
    """Slurm checks limits every 30 s and signals up to 31 s early. 1200 steps take a minute."""
    limit = ["cluster.time=1", "cluster.signal_seconds=1"]
    job, run = login.submit("cluster=slurm", *limit, *EACH_STEP, "trainer.max_steps=1200", slow_steps)
    assert login.testbed.wait_job(job, 900) == "COMPLETED", log(run)
    parts = info(run)["attempts"]
    assert len(parts) > 1
    assert [part["ended_by"] for part in parts] == ["SIGUSR1"] * (len(parts) - 1) + ["completed"]
    went_on_without_loss(login, job, run, 1200)


@pytest.mark.slow
@pytest.mark.parametrize(
    "launches",
    [
        ["mpirun trainer.nodes=1"],
        pytest.param(["srun", "torchrun", "mpirun", "horovodrun strategy=horovod", "mpirun trainer.nodes=1"], marks=pytest.mark.slow),
    ],
    ids=["one", "all"],
)  # fmt: skip
def test_preemption_by_a_job_of_a_higher_partition(
    login: Login, slow_steps: str, shared_dir: Path, launches: list[str]
) -> None:
    """The ranks are in a step of 5 s, which must finish and be saved."""
    words = ["trainer.devices=1", *EACH_STEP, "trainer.max_steps=100", "cluster.partition=preemptible"]
    set_step_seconds(shared_dir, "1")
    jobs = [
        login.submit("cluster=slurm", *words, "trainer.nodes=2", *f"launch={launch}".split(), slow_steps)
        for launch in launches
    ]
    for _, run in jobs:
        wait_for(lambda run=run: trained(run) > 1, run, 300)
    set_step_seconds(shared_dir, "5")
    time.sleep(1)  # the short step is over
    urgent = login.testbed.run(
        ["srun", "--partition=urgent", "--nodes=4", "--exclusive", "true"], timeout=300
    )
    set_step_seconds(shared_dir, "0.05")
    assert urgent.returncode == 0, urgent.stderr
    for launch, (job, run) in zip(launches, jobs, strict=True):
        assert login.testbed.wait_job(job, 300) == "COMPLETED", log(run)
        first, second = (part["ended_by"] for part in info(run)["attempts"])
        # TERM is from Slurm to its tasks, USR1 from the batch script. Without control groups torchrun's children get both.
        both = launch == "torchrun" and "proctrack/cgroup" not in login.testbed.layout.conf
        expected = {"SIGTERM", "SIGUSR1"} if both else {"SIGTERM" if launch == "srun" else "SIGUSR1"}
        assert first in expected, log(run)
        assert second == "completed", log(run)
        assert not PAGES.search(log(run)), log(run)
        went_on_without_loss(login, job, run, 100)


LINGERING = """
import sys
import time
import lightning.pytorch as pl

class Lingering(pl.Callback):
    def on_fit_start(self, trainer, module):
        recorder = sys.modules["train_anywhere.runs.recorder"].RunRecorder
        end = recorder.record_end  # only the first rank calls it

        def late(self, outcome, signal):
            time.sleep(15 if outcome.state == "preempted" else 0)
            return end(self, outcome, signal)

        recorder.record_end = late
"""


@pytest.mark.slow
def test_a_node_whose_ranks_are_done_leaves_the_others_their_time(
    login: Login, slow_steps: str, shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank exits 15 s after the other. Slurm kills a step 10 s after a failed task."""
    (shared_dir / "lingering.py").write_text(LINGERING)
    environ = {**login.testbed.env(), "PYTHONPATH": str(shared_dir)}
    monkeypatch.setattr(login.testbed, "env", lambda: environ)
    words = ["trainer.devices=1", "trainer.nodes=2", *EACH_STEP, "trainer.max_steps=300", "launch=torchrun"]
    words += ["cluster.partition=preemptible", "callbacks.lingering._target_=lingering.Lingering", slow_steps]
    job, run = login.submit("cluster=slurm", *words)
    wait_for(lambda: trained(run) > 1, run, 120)
    urgent = login.testbed.run(
        ["srun", "--partition=urgent", "--nodes=4", "--exclusive", "true"], timeout=120
    )
    assert urgent.returncode == 0, urgent.stderr
    assert login.testbed.wait_job(job, 200) == "COMPLETED", log(run)
    first, second = (part["ended_by"] for part in info(run)["attempts"])
    assert first in ("SIGTERM", "SIGUSR1") and second == "completed", log(run)
    went_on_without_loss(login, job, run, 300)


@pytest.mark.slow
def test_requeued_again_and_again(login: Login, slow_steps: str) -> None:
    """Preempted jobs and their owner's requeues, compared with an undisturbed run."""
    times = max(3, int(os.environ.get("CHAOS_KILLS", "0")) // 20)
    words = ["trainer.devices=2", *EACH_STEP, f"trainer.max_steps={30 * times}", slow_steps]
    undisturbed, whole = login.submit("cluster=slurm", *words)
    job, run = login.submit("cluster=slurm", *words)
    for part in range(times):
        wait_for(lambda part=part: trained(run, part) > 5, run, 300)
        login.testbed.run(
            ["scontrol", "requeue", job] if part % 2 else ["scancel", "--signal=USR1", "--batch", job]
        )
    assert login.testbed.wait_job(job, 300) == "COMPLETED", log(run)
    assert login.testbed.wait_job(undisturbed, 300) == "COMPLETED", log(whole)
    assert len(info(run)["attempts"]) == times + 1
    went_on_without_loss(login, job, run, 30 * times)
    assert largest_difference(final_weights(run), final_weights(whole)) == 0


@pytest.mark.slow
def test_a_chain_for_sites_where_jobs_can_t_requeue_themselves(
    testbed_for: Callable[..., Testbed], shared_dir: Path, slow_steps: str
) -> None:
    """The first job stops as at a time limit, the second resumes, the third has nothing to do."""
    trillium = Login(testbed_for("trillium"), shared_dir)
    words = ["cluster=trillium", "cluster.chain=3", *TRILLIUM, "trainer.devices=1", *EACH_STEP]
    first, run = trillium.submit(*words, "trainer.max_steps=50", slow_steps)
    wait_for(lambda: trained(run) > 5, run, 300)
    trillium.testbed.run(["scancel", "--signal=USR1", "--batch", first])
    jobs = (run / "jobs.txt").read_text().split()
    states = [trillium.testbed.wait_job(job, 300) for job in jobs]
    assert states == ["COMPLETED"] * 3, log(run)
    assert [part["job"] for part in info(run)["attempts"]] == jobs[:2]
    assert "nothing to do" in (run / f"slurm-{jobs[2]}.out").read_text()
    went_on_without_loss(trillium, first, run, 50)


def went_on_without_loss(login: Login, job: str, run: Path, last: int) -> None:
    """One folder has one curve from the first step to the last, and `status` confirms it."""
    resumed = len(info(run)["attempts"]) - 1
    assert [path.name for path in login.results.glob("*/*")].count(run.name) == 1
    assert f"resumed {resumed} time{'s' if resumed > 1 else ''}, 0 steps lost" in login.jobs("status", job)
    check_curve(run, last)
