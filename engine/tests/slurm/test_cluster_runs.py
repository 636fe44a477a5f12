"""The whole loop on a real Slurm: submission, ranks on nodes, end of the job, metrics."""

import csv
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.tests.monitor.nvidia import fake_nvml
from engine.tests.slurm.login import SMALL, Login, log, per_host, wait_for
from tools.testbed.testbed_cluster import Testbed
from tools.testing import projects
from tools.testing.plugin import require_packages
from tools.testing.processes import run_python
from tools.testing.weights import fingerprints, info

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

SAMPLED = (*SMALL, "monitor.sample_seconds=0.5")
COMMENT = "cluster.comment='field=nlp;appl=pytorch'"
ELSEWHERE = "cluster.site.submit_below=[]"  # tests are not below /scratch


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.new_process
def test_neuron_with_four_nodes(testbed_for: Callable[..., Testbed], shared_dir: Path, devices: int) -> None:
    neuron = Login(testbed_for("neuron"), shared_dir)
    fake = fake_nvml(shared_dir / "nvml")  # the testbed has no GPU
    watched = [f'cluster.setup=["export PYTHONPATH={fake}"]']
    job, run = neuron.submit(
        "cluster=neuron",
        "trainer.nodes=4",
        f"trainer.devices={devices}",
        COMMENT,
        ELSEWHERE,
        *SAMPLED,
        *watched,
    )
    assert neuron.testbed.job_states(job) != ["COMPLETED"]  # it did not wait
    assert neuron.testbed.wait_job(job, 240) == "COMPLETED", log(run)
    assert per_host(run) == [devices] * 4
    ranks = 4 * devices
    assert of_rank(neuron, ranks - 1) == [f"[rank {ranks - 1}] rank {ranks - 1} of {ranks}"]
    assert info(run)["state"] == "completed"
    assert info(run)["world_size"] == ranks
    with open(run / "metrics.csv") as file:
        assert any(row["test/acc"] for row in csv.DictReader(file))
    check_samples(run, nodes=4, gpus=devices)


def sampled(run: Path) -> list[str]:
    """The nodes that have rows of samples."""
    return sorted(table.stem for table in (run / "monitor").glob("*.csv"))


def check_samples(run: Path, nodes: int, gpus: int) -> None:
    """Each node has rows of its CPUs and the job's GPUs, and the log does not mention them."""
    assert sampled(run) == sorted(info(run)["hosts"]) and len(sampled(run)) == nodes
    for table in (run / "monitor").glob("*.csv"):
        with open(table) as file:
            rows = [*csv.DictReader(file)]
        assert len(rows) > 1 and float(rows[-1]["cpu_use_percent"]) >= 0, table.read_text()
        assert {n for n in rows[0] if n.endswith("_power_w")} == {f"gpu{i}_power_w" for i in range(gpus)}
        newest = json.loads(table.with_suffix(".json").read_text())
        assert newest["sample"]["time"] in [float(row["time"]) for row in rows[-2:]]
        gpu = {"index": 0, "name": "NVIDIA A100-SXM4-80GB", "memory_gib": 80.0, "idle_since": None}
        assert newest["gpus"][0] == gpu
    assert "train_anywhere.monitor" not in log(run) and "srun:" not in log(run)


def test_neuron_itself_refuses_what_our_rule_refuses(
    testbed_for: Callable[..., Testbed], shared_dir: Path
) -> None:
    """The rule is the site's: Slurm refuses a script without the comment."""
    neuron = Login(testbed_for("neuron"), shared_dir)
    done = neuron.command(
        "train", "cluster=neuron", ELSEWHERE, "cluster.site.comment=null", f"paths.results={neuron.results}"
    )
    assert done.returncode == 2
    assert "sbatch refused the job" in done.stderr
    assert "comment" in done.stderr
    assert list(neuron.results.glob("*/*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["srun", "srun strategy=horovod", "torchrun", "mpirun"])
def test_technion_trains_three_ranks_on_two_nodes(
    testbed_for: Callable[..., Testbed], shared_dir: Path, launch: str
) -> None:
    technion = Login(testbed_for("technion"), shared_dir)
    words = ["cluster=technion", "trainer.nodes=2", "trainer.total_devices=3", "model=mlp", *SAMPLED]
    run = technion.result(*words, *f"launch={launch}".split())
    assert per_host(run) == [2, 1] and len(fingerprints(log(run))) == 1
    assert sampled(run) == sorted(info(run)["hosts"])
    assert info(run)["state"] == "completed"
    assert f"started by {launch.split()[0]}" in log(run)


@pytest.mark.parametrize("launch", ["srun", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_ranks_in_a_container(
    login: Login, shared_dir: Path, launch: str, require: Callable[[object, str], None]
) -> None:
    """The testbed's stand-in for pyxis shows this machine's programs but not the results folder."""
    from tools.testbed.testbed_config import PACKAGES, can_build, make_image

    require(can_build(), f"install {PACKAGES}")
    base = Path(os.path.realpath(sys.executable)).parents[1]
    image = make_image(
        shared_dir / "image", borrow=[base, Path(sys.prefix)], environment={"FROM_IMAGE": "yes"}
    )
    words = ["container=pyxis", f"container.image={image}", f"container.python={sys.executable}"]
    size = ["trainer.nodes=2", "trainer.devices=1"]
    run = login.result("cluster=slurm", *words, f"launch={launch}", *size, *SAMPLED)
    assert per_host(run) == [1, 1]
    assert sampled(run) == sorted(info(run)["hosts"])
    assert info(run)["state"] == "completed"


@pytest.mark.mpi
def test_pbs_on_debian_s_qsub_for_slurm(testbed_for: Callable[..., Testbed], shared_dir: Path) -> None:
    """Debian's qsub for Slurm takes the script and sets PBS_NODEFILE. It does not know GPUs."""
    pbs = Login(testbed_for("sockeye_pbs"), shared_dir)
    words = ["cluster=sockeye_pbs", "cluster.account=st-pi-1-gpu", ELSEWHERE, "cluster.site.write_below=[]"]
    few = ["trainer.nodes=2", "trainer.devices=2", "cluster.cpus_per_task=2", "cluster.mem=4G"]
    job, run = pbs.submit(*words, *few, *SAMPLED)
    assert pbs.testbed.wait_job(job, 150) == "COMPLETED", pbs_log(run)
    assert info(run)["state"] == "completed", pbs_log(run)
    assert info(run)["world_size"] == 4
    assert len(info(run)["hosts"]) == 2
    assert sampled(run) == info(run)["hosts"][:1]
    assert "completed" in pbs.jobs("status")
    assert "test/acc 0." in pbs.jobs("logs")


@pytest.mark.slow
def test_torchrun_in_a_pbs_job_is_told_to_stop(testbed_for: Callable[..., Testbed], shared_dir: Path) -> None:
    pbs = Login(testbed_for("sockeye_pbs"), shared_dir)
    words = ["cluster=sockeye_pbs", "cluster.account=st-pi-1-gpu", ELSEWHERE, "cluster.site.write_below=[]"]
    few = ["launch=torchrun", "trainer.devices=2", "cluster.cpus_per_task=2", "cluster.mem=4G"]
    job, run = pbs.submit(*words, *few, "model=mlp", "trainer.max_epochs=1000")
    wait_for(lambda: "epoch 2/1000" in pbs_log(run), run, 120)
    pbs.testbed.run(["scancel", "--signal=USR1", "--batch", job])
    wait_for(lambda: info(run)["state"] == "preempted", run, 60)
    assert info(run)["attempts"][-1]["ended_by"] == "SIGUSR1", pbs_log(run)


def of_rank(login: Login, rank: int) -> list[str]:
    """Return the start of each line of a rank about its place."""
    lines = [line.partition(": local rank") for line in login.jobs("logs").splitlines()]
    return [
        start
        for start, found, _ in lines
        if found and (f"[rank {rank}] " in start or not (rank or "[rank" in start))
    ]


def pbs_log(run: Path) -> str:
    return "\n".join(p.read_text() for p in sorted(run.glob("pbs*")))


@pytest.mark.slow
def test_the_exit_code_of_a_failed_training_is_the_job_s(login: Login) -> None:
    (login.folder / "empty").mkdir()
    on_nodes = f"cluster.local_disk={login.folder}/empty"  # so that the pictures are not checked here
    job, _ = login.submit("cluster=slurm", "data=imagefolder", f"paths.data={login.folder}/empty", on_nodes)
    assert login.testbed.wait_job(job, 90) == "FAILED"
    assert "ExitCode=1:0" in login.testbed.run(["scontrol", "show", "job", job]).stdout
    assert "failed" in login.jobs("status")
    assert "==> " in login.jobs("logs")


@pytest.mark.slow
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


@pytest.mark.slow
def test_two_nodes_answer(testbed: Testbed, shared_dir: Path) -> None:
    words = ("cluster=slurm", "trainer.nodes=2", "trainer.devices=1", "trainer.accelerator=cpu")
    environ = {**os.environ, **testbed.env(), "OMP_NUM_THREADS": "1"}
    done = run_python("-m", "train_anywhere", "doctor", *words, f"paths.results={shared_dir}", env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"2 of 2 ranks answered, on (node\d), (?!\1)node\d$", done.stdout, re.MULTILINE)


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
    words = ("cluster=slurm", *SAMPLED, *size, strategy, setup, "callbacks.where._target_=where.Where")
    done = login.command("train", *words, "dry_run=true")
    require_packages(done.stderr)
    run = login.result(*words)
    engine = run.resolve() / "code" / "train_anywhere" / "__init__.py"
    lines = [
        line.partition("engine of rank ")[2] for line in log(run).splitlines() if "engine of rank " in line
    ]
    assert sorted(lines) == [f"{rank}: {engine}" for rank in range(4)], log(run)
    assert per_host(run) == [2, 2] and f"started by {launch}" in log(run)
    assert sampled(run) == sorted(info(run)["hosts"])
    assert of_rank(login, 3) == ["[rank 3] rank 3 of 4"]


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


def pictures(folder: Path) -> Path:
    """Two classes of 8 pictures each, to train and to validate."""
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        for number in range(16):
            path = folder / split / f"class{number % 2}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(256, size=(16, 16, 3), dtype=np.uint8)).save(path)
    return folder


@pytest.mark.slow
def test_each_node_copies_it_once(login: Login) -> None:
    """Two ranks on each of two nodes read one copy. A second job finds it, with the same loss."""
    data = pictures(login.folder / "pictures")
    words = [
        "cluster=slurm", "trainer.nodes=2", "trainer.devices=2", "trainer.accelerator=cpu", "data=imagefolder",
    ]  # fmt: skip
    words += [
        f"data.dir={data}",
        "data.image_size=8",
        "data.batch_size=8",
        "data.workers=0",
        "model=mlp",
        *SMALL,
        "cluster.local_disk=/tmp/disk-of-test-stage",
    ]
    copied = r"^(node\d): copying .*pictures to its own disk: done"
    first = login.result(*words, "data.stage=true")
    nodes = re.findall(copied, log(first), re.M)
    assert len(nodes) == 2 and len({*nodes}) == 2, log(first)
    again = login.result(*words, "data.stage=true")
    assert not {*re.findall(copied, log(again), re.M)} & {*nodes}, log(again)
    plain = login.result(*words)
    losses = [re.findall(r"test/loss (\S+)", log(run)) for run in (first, again, plain)]
    assert losses[0] and losses[0] == losses[1] == losses[2]
