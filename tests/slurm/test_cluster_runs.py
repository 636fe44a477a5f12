"""The whole loop on a real Slurm: the command line submits, nodes run the ranks, the job ends, the metrics are there."""

import csv
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm.testbed.cluster import Testbed
from src.rundir import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root, pytest.mark.slow]

SMALL = ("trainer.max_epochs=1", "monitor.tensorboard=false", "monitor.ranks=true")
COMMENT = "cluster.comment='field=nlp;appl=pytorch'"
ELSEWHERE = "cluster.site.submit_below=[]"  # tests are not below /scratch


class Cluster:
    """The project's commands as typed on the login node of a testbed."""

    def __init__(self, testbed: Testbed, folder: Path, root: Path = ROOT) -> None:
        self.testbed, self.results, self.root = testbed, folder / "results", root

    def command(self, program: str, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """`python src/<program>.py words...`"""
        command = [sys.executable, str(self.root / "src" / f"{program}.py"), *words]
        environ = {**self.testbed.env(), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout)

    def submit(self, *words: str) -> tuple[str, Path]:
        """Submit; returns the job id and the run folder (of a sweep, that of its first member)."""
        flags = [w for w in words if w.startswith("-")]
        overrides = [w for w in words if not w.startswith("-")]
        done = self.command("train", *flags, *overrides, f"paths.results={self.results}")
        assert done.returncode == 0, done.stderr
        found = re.match(r"Submitted job (\d+)", done.stdout)
        assert found, done.stdout
        return found[1], (self.results / "latest").resolve()

    def train(self, *words: str, timeout: float = 150) -> Path:
        """Submit, wait for COMPLETED; returns the run folder."""
        job, run = self.submit(*words)
        assert self.testbed.wait_job(job, timeout) == "COMPLETED", log(run)
        return run

    def jobs(self, *words: str) -> str:
        """What `python src/jobs.py words...` prints."""
        done = self.command("jobs", *words, "--results", str(self.results))
        assert done.returncode == 0, done.stderr
        return done.stdout


def log(run: Path) -> str:
    """Everything that the jobs of a run printed."""
    return "\n".join(p.read_text() for p in sorted(run.glob("slurm-*.*")))


def info(run: Path) -> dict[str, object]:
    """run.json"""
    return dict(json.loads((run / "run.json").read_text()))


def ranks(run: Path) -> dict[int, str]:
    """Host of each rank, as the ranks said at their start."""
    return {int(r): h for r, h in re.findall(r"rank (\d+) of \d+: .* on node \d+ \((\S+)\)", log(run))}


def per_host(run: Path) -> list[int]:
    """Ranks on each host, most first."""
    hosts = list(ranks(run).values())
    return sorted((hosts.count(h) for h in set(hosts)), reverse=True)


@pytest.fixture
def cluster(testbed: Testbed, shared_dir: Path) -> Cluster:
    return Cluster(testbed, shared_dir)


def test_neuron_with_four_nodes_and_eight_ranks(
    testbed_for: Callable[..., Testbed], shared_dir: Path
) -> None:
    neuron = Cluster(testbed_for("neuron"), shared_dir)
    began = time.monotonic()
    job, run = neuron.submit(
        "cluster=neuron", "trainer.nodes=4", "trainer.devices=2", COMMENT, ELSEWHERE, *SMALL
    )
    returned = time.monotonic() - began
    assert neuron.testbed.job_states(job) != ["COMPLETED"]  # it did not wait
    assert neuron.testbed.wait_job(job, 240) == "COMPLETED", log(run)
    assert returned < 60
    assert per_host(run) == [2, 2, 2, 2]
    assert info(run)["state"] == "completed"
    assert info(run)["world_size"] == 8
    with open(run / "metrics.csv") as file:
        assert any(row["test/acc"] for row in csv.DictReader(file))


def test_neuron_itself_refuses_what_our_rule_refuses(
    testbed_for: Callable[..., Testbed], shared_dir: Path
) -> None:
    """The rule is the site's: Slurm says no to a script without the comment."""
    neuron = Cluster(testbed_for("neuron"), shared_dir)
    done = neuron.command(
        "train", "cluster=neuron", ELSEWHERE, "cluster.site.comment=null", f"paths.results={neuron.results}"
    )
    assert done.returncode == 2
    assert "sbatch refused the job" in done.stderr
    assert "comment" in done.stderr
    assert list(neuron.results.glob("*/*")) == []


@pytest.mark.parametrize("launch", ["torchrun", "mpirun"])
def test_other_launch_methods(cluster: Cluster, launch: str) -> None:
    run = cluster.train("cluster=slurm", "trainer.nodes=2", "trainer.devices=2", f"launch={launch}", *SMALL)
    assert per_host(run) == [2, 2]
    assert f"started by {launch}" in log(run)
    assert info(run)["state"] == "completed"


@pytest.mark.parametrize("launch", ["srun", "torchrun", "mpirun"])
def test_technion_trains_three_ranks_on_two_nodes(
    testbed_for: Callable[..., Testbed], shared_dir: Path, launch: str
) -> None:
    technion = Cluster(testbed_for("technion"), shared_dir)
    words = ["cluster=technion", "trainer.nodes=2", "trainer.total_devices=3", *SMALL]
    run = technion.train(*words, *([] if launch == "srun" else [f"launch={launch}"]))
    assert per_host(run) == [2, 1]
    assert info(run)["state"] == "completed"
    assert f"started by {launch}" in log(run)


def test_keras_over_two_nodes(cluster: Cluster) -> None:
    run = cluster.train(
        "cluster=slurm", "framework=keras", "trainer.nodes=2", "trainer.devices=1", *SMALL, timeout=240
    )
    assert per_host(run) == [1, 1]
    assert info(run)["state"] == "completed"


def test_a_failed_member_of_a_sweep_is_resubmitted_alone(cluster: Cluster) -> None:
    """The second seed's folder can't be written to at first."""
    job, first = cluster.submit("-m", "cluster=slurm", "seed=1,2,3", *SMALL, "cluster.max_running=1")
    sweep = first.name.removesuffix("-0")
    second = first.with_name(f"{sweep}-1")
    config = (second / "config.yaml").read_text()
    (second / "config.yaml").write_text("broken: true\n")
    assert cluster.testbed.wait_job(job, 200) == "FAILED"
    (second / "config.yaml").write_text(config)
    status = cluster.jobs("status", sweep)
    assert re.findall(rf"{sweep}-(\d)  (\w+)", status) == [
        ("0", "completed"),
        ("1", "failed"),
        ("2", "completed"),
    ]
    again = cluster.jobs("resubmit", sweep, "--failed")
    found = re.match(rf"Submitted job (\d+): {second.name}\n", again)
    assert found, again
    assert cluster.testbed.wait_job(found[1], 120) == "COMPLETED", log(second)
    assert info(second)["state"] == "completed"
    assert (
        "nothing to submit again"
        in cluster.command("jobs", "resubmit", sweep, "--failed", "--results", str(cluster.results)).stderr
    )


def test_editing_the_code_of_a_queued_job_changes_nothing(testbed: Testbed, shared_dir: Path) -> None:
    from slurm.snapshot import take

    copy = shared_dir / "project"
    take(ROOT, copy, ROOT / "results")
    edited = Cluster(testbed, shared_dir, copy)
    job, run = edited.submit("cluster=slurm", *SMALL, 'cluster.extra=["--hold"]')
    (copy / "src" / "rank.py").write_text("raise SystemExit('edited')\n")
    assert testbed.run(["scontrol", "release", job]).returncode == 0
    assert testbed.wait_job(job, 120) == "COMPLETED", log(run)


@pytest.mark.parametrize(
    "words",
    [
        ["launch=srun"],
        ["launch=srun", "trainer.nodes=2", "trainer.devices=2"],
        ["launch=torchrun", "trainer.nodes=2", "trainer.devices=1"],
        ["launch=mpirun", "trainer.nodes=2", "trainer.devices=1"],
        ["launch=horovodrun", "strategy=horovod", "trainer.nodes=2", "trainer.devices=1"],
        ["framework=keras", "launch=srun", "trainer.nodes=2", "trainer.devices=1"],
    ],
    ids=lambda words: "-".join(w.split("=")[1] for w in words),
)
def test_a_job_that_is_told_to_stop_requeues_itself_and_goes_on(cluster: Cluster, words: list[str]) -> None:
    job, run = cluster.submit("cluster=slurm", *words, "trainer.max_epochs=60", "monitor.tensorboard=false")
    wait_until(lambda: "epoch 2/60" in log(run), 120)
    cluster.testbed.run(["scancel", "--signal=USR1", "--batch", job])
    wait_until(lambda: "back to the queue" in log(run), 60)
    assert cluster.testbed.wait_job(job, 200) == "COMPLETED", log(run)
    assert info(run)["restarts"] == 1
    assert "resumed 1 time, 0 steps lost" in cluster.jobs("status", job)
    with open(run / "metrics.csv") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert steps == sorted(steps)  # one curve


def test_a_cancelled_job_stays_away(cluster: Cluster) -> None:
    job, run = cluster.submit("cluster=slurm", "trainer.max_epochs=500", "monitor.tensorboard=false")
    wait_until(lambda: "epoch 2/500" in log(run), 90)
    assert f"cancelled job {job}" in cluster.jobs("cancel", run.name)
    wait_until(lambda: cluster.testbed.job_states(job) == ["CANCELLED"], 30)
    time.sleep(2)
    assert cluster.testbed.job_states(job) == ["CANCELLED"]
    assert "no job of it is queued or running" in cluster.jobs("cancel", str(run))


def test_the_same_command_inside_salloc_runs_at_once(cluster: Cluster) -> None:
    words = [
        "cluster=slurm",
        "trainer.nodes=2",
        "trainer.devices=1",
        *SMALL,
        f"paths.results={cluster.results}",
    ]
    command = [sys.executable, str(ROOT / "src" / "train.py"), *words]
    environ = {"OMP_NUM_THREADS": "1"}
    done = cluster.testbed.run(
        ["salloc", "--nodes=2", "--gpus-per-node=1", *command], env=environ, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "In this allocation: 2 nodes, 2 ranks" in done.stdout
    assert "Test accuracy" in done.stdout
    run = (cluster.results / "latest").resolve()
    assert info(run)["state"] == "completed"
    too_many = cluster.testbed.run(
        ["salloc", "--nodes=1", "--cpus-per-task=2", *command], env=environ, timeout=60
    )
    assert too_many.returncode == 2
    assert "use trainer.nodes=1" in too_many.stderr


def test_the_exit_code_of_a_failed_training_is_the_job_s(cluster: Cluster) -> None:
    (cluster.results.parent / "empty").mkdir()
    job, _ = cluster.submit("cluster=slurm", "data=imagefolder", f"paths.data={cluster.results.parent}/empty")
    assert cluster.testbed.wait_job(job, 90) == "FAILED"
    assert "ExitCode=1:0" in cluster.testbed.run(["scontrol", "show", "job", job]).stdout
    assert "failed" in cluster.jobs("status")
    assert "==> " in cluster.jobs("logs")


def test_wait_and_logs_follow_until_the_end(cluster: Cluster) -> None:
    done = cluster.command("train", "cluster=slurm", "wait=true", *SMALL, f"paths.results={cluster.results}")
    assert done.returncode == 0, done.stderr
    assert info((cluster.results / "latest").resolve())["state"] == "completed"
    followed = cluster.jobs("logs", "-f")
    assert "Test accuracy" in followed


def test_slurm_s_own_verdict(cluster: Cluster) -> None:
    done = cluster.command("train", "cluster=slurm", "dry_run=test")
    assert done.returncode == 0, done.stderr
    assert "sbatch --test-only: sbatch: Job" in done.stdout
    refused = cluster.command("train", "cluster=slurm", "dry_run=test", "cluster.partition=nothere")
    assert refused.returncode == 2
    assert "invalid partition" in refused.stderr.lower()


HOSTILE = 'we\'ird "q"; $(touch HACKED) `touch HACKED` #x %j \\ é'


def test_hostile_values_survive_the_real_sbatch(testbed: Testbed, shared_dir: Path) -> None:
    """The results folder and the comment are hostile; the comment comes back from Slurm as it was."""
    folder = shared_dir / "my $(touch HACKED) 'results'; #1"
    hostile = Cluster(testbed, folder)
    value = HOSTILE.replace("'", "\\'")  # in Hydra's quotes
    done = hostile.command(
        "train", "cluster=slurm", f"cluster.comment='{value}'", quoted(hostile.results), *SMALL
    )
    assert done.returncode == 0, done.stderr
    job = re.match(r"Submitted job (\d+)", done.stdout)[1]  # type: ignore[index]
    run = (hostile.results / "latest").resolve()
    assert testbed.wait_job(job, 120) == "COMPLETED", log(run)
    assert f"Comment={HOSTILE} \n" in testbed.run(["scontrol", "show", "job", job]).stdout
    assert (run / f"slurm-{job}.out").exists()
    assert not list(shared_dir.rglob("HACKED")) and not Path("HACKED").exists()


def quoted(results: Path) -> str:
    """`paths.results=` in Hydra's quotes."""
    return "paths.results='" + str(results).replace("'", "\\'") + "'"


def wait_until(done: Callable[[], bool], timeout: float) -> None:
    end = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < end, f"did not happen in {timeout} s"
        time.sleep(0.1)


def test_a_user_without_rights_submits_too(testbed: Testbed, shared_dir: Path) -> None:
    """As alice, with the system's Python where the environment is readable; root owns the project."""
    if not os.access(sys.executable, os.X_OK) or "/root/" in os.path.realpath(sys.executable):
        pytest.skip("the interpreter is below /root, which alice can't read")
    command = [
        sys.executable,
        str(ROOT / "src" / "train.py"),
        "cluster=slurm",
        *SMALL,
        f"paths.results={shared_dir}/r",
    ]
    done = testbed.run(command, user="alice", env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    job = re.match(r"Submitted job (\d+)", done.stdout)[1]  # type: ignore[index]
    assert testbed.wait_job(job, 120) == "COMPLETED"


@pytest.mark.parametrize("launch", ["srun", "torchrun"])
def test_ranks_in_a_container(
    testbed: Testbed, shared_dir: Path, launch: str, require: Callable[[object, str], None]
) -> None:
    """With the testbed's stand-in for pyxis: the image shows this machine's programs and not the results folder."""
    from slurm.testbed.images import PACKAGES, can_build, make_image

    require(can_build(), f"install {PACKAGES}")
    base = Path(os.path.realpath(sys.executable)).parents[1]
    image = make_image(
        shared_dir / "image", borrow=[base, Path(sys.prefix)], environment={"FROM_IMAGE": "yes"}
    )
    words = [
        "cluster=slurm",
        "container=pyxis",
        f"container.image={image}",
        f"container.python={sys.executable}",
    ]
    run = Cluster(testbed, shared_dir).train(
        *words, f"launch={launch}", "trainer.nodes=2", "trainer.devices=1", *SMALL
    )
    assert per_host(run) == [1, 1]
    assert info(run)["state"] == "completed"


def test_pbs_on_debian_s_qsub_for_slurm(testbed_for: Callable[..., Testbed], shared_dir: Path) -> None:
    """No PBS server is in Debian: its qsub for Slurm takes the script and sets PBS_NODEFILE. GPUs it does not know."""
    pbs = Cluster(testbed_for("sockeye_pbs"), shared_dir)
    words = ["cluster=sockeye_pbs", "cluster.account=st-pi-1-gpu", ELSEWHERE, "cluster.site.write_below=[]"]
    few = ["trainer.nodes=2", "trainer.devices=2", "cluster.cpus_per_task=2", "cluster.mem=4G"]
    job, run = pbs.submit(*words, *few, *SMALL)
    assert pbs.testbed.wait_job(job, 150) == "COMPLETED", pbs_log(run)
    assert info(run)["state"] == "completed", pbs_log(run)
    assert info(run)["world_size"] == 4
    assert len(info(run)["hosts"]) == 2  # type: ignore[arg-type]
    assert "completed" in pbs.jobs("status")
    assert "Test accuracy" in pbs.jobs("logs")


def pbs_log(run: Path) -> str:
    return "\n".join(p.read_text() for p in sorted(run.glob("pbs*")))


def test_a_chain_ends_at_once_when_the_run_is_complete(cluster: Cluster) -> None:
    job, run = cluster.submit("cluster=slurm", "cluster.requeue=false", "cluster.chain=2", *SMALL)
    first, second = (run / "jobs.txt").read_text().split()
    assert first == job
    assert cluster.testbed.wait_job(first, 100) == "COMPLETED", log(run)
    assert cluster.testbed.wait_job(second, 60) == "COMPLETED", log(run)
    assert "nothing to do" in (run / f"slurm-{second}.out").read_text()


def test_horovodrun_reaches_the_other_node_without_ssh(
    cluster: Cluster, require: Callable[[object, str], None]
) -> None:
    require((Path(sys.executable).parent / "horovodrun").exists(), "make horovod")
    words = [
        "cluster=slurm",
        "strategy=horovod",
        "launch=horovodrun",
        "trainer.nodes=2",
        "trainer.total_devices=3",
    ]
    run = cluster.train(*words, *SMALL, timeout=240)
    assert per_host(run) == [2, 1]
    assert info(run)["state"] == "completed"
