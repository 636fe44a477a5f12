"""Real jobs whose ranks start again in the same allocation, maybe on fewer nodes."""

import json
import re
from pathlib import Path

import pytest

from engine.tests.slurm.login import EACH_STEP, Login, check_curve, log, set_step_seconds, trained, wait_for
from tools.testing.weights import final_weights, info, largest_difference

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

KEPT = (
    "checkpoint.every_n_epochs=1000", "checkpoint.every_n_steps=20", "data.batch_size=24", "optimizer=sgd", "model.hidden=[]",
)  # fmt: skip
"""Without hidden layers: a sum in another order can flip a ReLU at 0, which changes the weights of its unit by 1e-4."""


@pytest.mark.slow
@pytest.mark.usefixtures("on_again")
@pytest.mark.parametrize(
    "words",
    [
        ["strategy=ddp", "launch=srun"],
        ["strategy=ddp", "launch=torchrun"],
        ["strategy=horovod", "launch=horovodrun"],
        ["framework=keras", "strategy=multiworker_mirrored", "launch=srun"],
    ],
    ids=lambda words: "-".join(w.split("=")[1] for w in words),
)
def test_a_job_goes_on_without_the_node_that_died(
    login: Login, slow_steps: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of 2-4 nodes start, two complete without a queue: rows and weights equal a run on two."""
    size = ["trainer.devices=1", "trainer.max_steps=160"]
    data = ["data._target_=brought.open_recorded", bring(login, monkeypatch, RECORDED)]
    same = ["cluster=slurm", *words, *EACH_STEP, *KEPT, *size, *data]
    login.testbed.kill_node("node4")
    login.testbed.machines.wait_for(
        lambda: "down" in login.testbed.run(["sinfo", "-hN", "-nnode4", "-o%T"]).stdout, "node4 is not down"
    )
    job, run = login.submit(*same, "trainer.nodes=2-4", slow_steps)
    wait_for(lambda: trained(run) > 50, run, 300)
    assert info(run)["hosts"] == ["node1", "node2", "node3"]
    login.testbed.kill_node("node3")
    wait_for(lambda: len(info(run)["attempts"]) == 2 and trained(run, 1) > 0, run, 120)
    assert login.testbed.wait_job(job, 300) == "COMPLETED", log(run)
    before, after = info(run)["attempts"]
    assert after["hosts"] == ["node1", "node2"] and before["job"] == after["job"]
    assert 0 <= before["step"] - after["from_step"] <= 20 + 5
    assert "again: node3 does not answer any more: the ranks start on node1, node2" in log(run)
    assert info(run)["restarts"] == 1 and "requeue" not in log(run)
    check_curve(run, 160)
    set_step_seconds(login.folder, "0")
    whole = login.result(*same, "trainer.nodes=2")
    assert largest_difference(final_weights(run), final_weights(whole)) < 1e-5
    on_three, on_two = rows_of_batches(login.folder, job)
    (alone,) = rows_of_batches(login.folder, info(whole)["attempts"][0]["job"])
    assert on_three[: before["step"]] == alone[: before["step"]]
    assert on_two[: 160 - after["from_step"]] == alone[after["from_step"] : 160]


def test_an_elastic_job_leaves_nodes_idle_that_do_not_share_the_batch(login: Login) -> None:
    """Slurm gives three of 2-4 nodes, and a batch of 64 is shared evenly by two or four. Memory is requested per CPU."""
    size = ("trainer.nodes=2-4", "trainer.devices=1", "data.batch_size=64", "trainer.max_steps=4")
    run = login.result(
        "cluster=slurm", "cluster.exclude=node4", "cluster.mem_per_cpu=500M", "strategy=ddp", *size
    )
    assert info(run)["hosts"] == ["node1", "node2"] and info(run)["world_size"] == 2
    assert "2 nodes share the batch evenly; idle: node3." in log(run)


RECORDED = """
import os
from pathlib import Path

from train_anywhere.data.dataset import Splits
from src.data.digits import open_digits

class Recorded:
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def read(self, indices, epoch, train):
        if train and len(indices) > 1:  # not a look at one row
            start = f"{os.environ['SLURM_JOB_ID']}-{os.environ['TRAIN_STARTED']}"
            with open(Path(__file__).with_name(f"rows-{start}-{os.uname().nodename}-{os.getpid()}"), "a") as file:
                print(*indices, file=file)
        return self.rows.read(indices, epoch, train)

def open_recorded():
    splits = open_digits()
    return Splits(Recorded(splits.train), splits.val, splits.test, splits.facts)
"""


def rows_of_batches(folder: Path, job: str) -> list[list[list[int]]]:
    """Return the sorted rows of each batch of all ranks, in order, for each start of the ranks."""
    starts: dict[str, list[Path]] = {}
    for file in sorted(folder.glob(f"rows-{job}-*")):
        starts.setdefault(file.name.split("-")[2], []).append(file)
    return [
        [
            sorted(int(row) for line in lines for row in line.split())
            for lines in zip(*(file.read_text().splitlines() for file in files), strict=False)
        ]
        for _, files in sorted(starts.items())
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("on_again")
def test_a_node_that_is_back_is_taken_in_by_the_next_requeue(login: Login, slow_steps: str) -> None:
    """Three nodes, then two, then three again: one run, one job, one curve."""
    size = ["trainer.nodes=2-3", "trainer.devices=1", "trainer.max_steps=200"]
    job, run = login.submit("cluster=slurm", *EACH_STEP, *KEPT, *size, slow_steps)
    wait_for(lambda: trained(run) > 30, run, 300)
    died = info(run)["hosts"][-1]
    login.testbed.kill_node(died)
    wait_for(lambda: len(info(run)["attempts"]) == 2 and trained(run, 1) > 0, run, 120)
    login.testbed.boot_node(died)
    login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
    assert login.testbed.wait_job(job, 300) == "COMPLETED", log(run)
    assert [part["world_size"] for part in info(run)["attempts"]] == [3, 2, 3]
    assert "on 3, then 2, then 3 nodes" in login.jobs("status", run.name)
    check_curve(run, 200)


@pytest.mark.slow
@pytest.mark.usefixtures("on_again")
def test_a_job_whose_script_died_goes_back_to_the_queue(login: Login, slow_steps: str) -> None:
    """Plain Slurm would keep it RUNNING without processes until its time limit."""
    size = ["trainer.nodes=2-4", "trainer.devices=1", "trainer.max_steps=120"]
    job, run = login.submit("cluster=slurm", *EACH_STEP, *KEPT, *size, slow_steps)
    wait_for(lambda: trained(run) > 30, run, 300)
    assert info(run)["hosts"][0] == "node1"
    login.testbed.kill_node("node1")
    wait_for(lambda: len(info(run)["attempts"]) == 2, run, 400)
    assert login.testbed.wait_job(job, 300) == "COMPLETED", log(run)
    (said,) = (run / "debug").glob("*-script.txt")
    assert (
        "node1, on which the batch script ran, does not answer any more: requeueing the job"
        in said.read_text()
    )
    assert info(run)["hosts"] == ["node2", "node3", "node4"]
    check_curve(run, 120)


@pytest.mark.slow
def test_killed_ranks_are_started_again_so_often(login: Login, slow_steps: str) -> None:
    """After two failures at different steps the run completes. A third is one too many."""
    size = ["trainer.nodes=2", "trainer.devices=1", "trainer.max_steps=300"]
    job, run = login.submit("cluster=slurm", "cluster.retries=2", *EACH_STEP, *KEPT, *size, slow_steps)
    for part in range(2):
        wait_for(lambda part=part: trained(run, part) > 30, run, 300)
        kill_rank(login, info(run)["hosts"][part])
        wait_for(lambda part=part: len(info(run)["attempts"]) == part + 2, run, 120)
    assert login.testbed.wait_job(job, 300) == "COMPLETED", log(run)
    *failed, last = (part["ended_by"] for part in info(run)["attempts"])
    assert {*failed} <= {"killed", "failed"} and last == "completed"
    assert len(re.findall(r"again: .*retry \d of 2", log(run))) == 2, log(run)
    check_curve(run, 300)


SEEN = """
import json, os, pathlib
import lightning
import torch

class Seen(lightning.Callback):
    def on_fit_start(self, trainer, module):
        folder, rank = pathlib.Path(os.environ["SLURM_JOB_ID"]), os.environ["SLURM_PROCID"]
        parent = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[1]
        looks = {
            "environ": dict(os.environ), "cpus": sorted(os.sched_getaffinity(0)), "folder": os.getcwd(),
            "parent": pathlib.Path(f"/proc/{parent}/cmdline").read_text(), "cuda": torch.cuda.is_initialized(),
        }
        folder = pathlib.Path(__file__).with_name(f"seen-{folder}")
        folder.mkdir(exist_ok=True)
        self.file = folder / f"{rank}-{len(list(folder.glob(f'{rank}-*')))}"
        self.file.write_text(json.dumps(looks))

    def on_train_batch_start(self, trainer, module, batch, index):
        killed = self.file.with_name("killed")
        if trainer.global_step == 25 and trainer.global_rank == 3 and "-0" in self.file.name and not killed.exists():
            if json.loads(self.file.read_text())["environ"].get("KILLS"):
                killed.touch()
                os.kill(os.getpid(), 9)
"""

OF_A_START = re.compile(
    r"PWD|OLDPWD|KILLS|MASTER_PORT|TRAIN_STARTED|TRAIN_JOB|CODE|RUN|PYTHONPATH|.*PID|SLURM_JOB_(ID|NAME|START_TIME|END_TIME)"
    r"|SLURM_JOBID|SLURM_STEP_?ID|SLURM_SRUN_COMM_PORT|SLURM_STEP_LAUNCHER_PORT|SLURM_TASK_PID|SLURM_SUBMIT_.*|SLURMD_.*TRES.*"
)
"""Variables that differ between two jobs, or between two starts in one."""


@pytest.mark.slow
def test_a_forked_rank_has_the_environment_and_the_cpus_of_one_that_srun_started(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start, after a kill, is compared. Without retries no rank is a fork."""
    words = ["callbacks.seen._target_=brought.Seen", bring(login, monkeypatch, SEEN)]
    size = ["trainer.nodes=2", "trainer.devices=2", "trainer.max_steps=40", *KEPT, "trainer.accelerator=cpu"]
    looks = []
    for more in (["cluster.retries=1"], []):
        monkeypatch.setenv("KILLS", "1" * len(more))
        run = login.result("cluster=slurm", *EACH_STEP, *size, *words, *more)
        (job,) = {part["job"] for part in info(run)["attempts"]}
        last = 1 if more else 0
        looks.append(
            [json.loads((login.folder / f"seen-{job}" / f"{n}-{last}").read_text()) for n in range(4)]
        )
        if more:
            first, second = info(run)["attempts"]
            assert "rank 3 on node2: SIGKILL" in first["reason"] and "new interpreters" not in log(run), log(
                run
            )
            assert first["restart"]["stop"] < 10 and second["seconds"]["first"] > 0
    for forked, started in zip(*looks, strict=True):
        assert "fork_main" in forked["parent"] and "fork_main" not in started["parent"]
        own, other = (
            {k: v for k, v in one["environ"].items() if not OF_A_START.fullmatch(k)}
            for one in (forked, started)
        )
        assert own.items() ^ other.items() == set(), (
            own.items() - other.items(),
            other.items() - own.items(),
        )
        assert (forked["cpus"], forked["cuda"]) == (started["cpus"], False)
    ranks = [
        [one["environ"][f"SLURM_{name}"] for name in ("PROCID", "LOCALID", "NODEID", "NTASKS")]
        for one in looks[0]
    ]
    assert ranks == [["0", "0", "0", "4"], ["1", "1", "0", "4"], ["2", "0", "1", "4"], ["3", "1", "1", "4"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("job/__main__.py", "the supervisor of the job was killed (signal SIGKILL)"),
        ("^srun .*train.py --run", "srun was killed (signal SIGKILL)"),
    ],
    ids=["supervisor", "srun"],
)
def test_a_job_whose_supervisor_is_killed_comes_back(
    login: Login, slow_steps: str, what: str, reason: str
) -> None:
    """Its ranks end, the reason is recorded, and the next start of the job completes the run."""
    size = ["trainer.nodes=2", "trainer.devices=1", "trainer.max_steps=150"]
    job, run = login.submit("cluster=slurm", *EACH_STEP, *KEPT, *size, slow_steps)
    wait_for(lambda: trained(run) > 30, run, 300)
    first, second = info(run)["hosts"]
    assert login.testbed.run(["pkill", "-KILL", "-f", what], node=first).returncode == 0
    gone = lambda: login.testbed.run(["pgrep", "-f", "train.py --run"], node=second).returncode == 1  # noqa: E731
    wait_for(gone, run, 20)
    assert login.testbed.wait_job(job, 300) == "COMPLETED", log(run)
    assert [part.get("reason") for part in info(run)["attempts"]] == [reason, None], log(run)
    check_curve(run, 150)


@pytest.mark.slow
def test_a_failure_that_repeats_ends_the_job(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cause is named, though five retries were allowed."""
    words = ["callbacks.trouble._target_=brought.Trouble", bring(login, monkeypatch, BROUGHT)]
    size = ["trainer.nodes=2", "trainer.devices=1", "trainer.max_steps=60", "cluster.retries=5"]
    job, run = login.submit("cluster=slurm", *EACH_STEP, *KEPT, *size, *words)
    assert login.testbed.wait_job(job, 300) == "FAILED", log(run)
    said = re.findall("again: .*", log(run))
    assert len(said) == 2 and "retry 1 of 5" in said[0], log(run)
    assert re.search(
        r"not restarted: .* after step 34: rank 1 of 2 on node2: LookupError: row 42, 2 times", said[1]
    ), said


@pytest.mark.slow
def test_a_job_comes_back_without_the_node_that_fails(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rank fails at two steps without a retry left, and Slurm gives the job another node."""
    words = ["callbacks.trouble._target_=brought.Trouble", bring(login, monkeypatch, DEFECTIVE)]
    size = ["trainer.nodes=2", "trainer.devices=1", "trainer.max_steps=60", "cluster.retries=1"]
    job, run = login.submit("cluster=slurm", *EACH_STEP, *KEPT, *size, *words)
    assert login.testbed.wait_job(job, 300) == "COMPLETED", log(run)
    assert "not the first time on node2" in log(run)
    *before, last = [part["hosts"] for part in info(run)["attempts"]]
    assert before == [["node1", "node2"]] * 2 and "node2" not in last
    assert "node2 failed more than once" in login.jobs("status", run.name)


DEFECTIVE = """
import pathlib
import socket

import lightning

class Trouble(lightning.Callback):
    def on_train_batch_start(self, trainer, module, batch, index):
        fails = pathlib.Path(__file__).with_name(f"failed-{trainer.global_step}")
        if trainer.global_step in (34, 47) and socket.gethostname() == "node2" and not fails.exists():
            fails.touch()
            raise RuntimeError("the GPU has fallen off the bus")
"""

BROUGHT = """
import lightning

class Trouble(lightning.Callback):
    def on_train_batch_start(self, trainer, module, batch, index):
        if trainer.global_step == 34 and trainer.global_rank == 1:
            raise LookupError("row 42")
"""


def bring(login: Login, monkeypatch: pytest.MonkeyPatch, code: str) -> str:
    """Write a module `brought` on the shared disk. Return the override that makes jobs find it."""
    monkeypatch.setenv("PYTHONPATH", str(login.folder))
    (login.folder / "brought.py").write_text(code)
    return f"cluster.setup=['export PYTHONPATH={login.folder}']"


def kill_rank(login: Login, node: str, signal: str = "KILL") -> None:
    """kill -9 of the ranks of a node."""
    assert login.testbed.run(["pkill", f"-{signal}", "-f", "train.py --run"], node=node).returncode == 0
