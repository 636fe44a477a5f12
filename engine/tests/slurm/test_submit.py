"""Submissions to a real Slurm: allocations, sweeps, changing code, hostile values."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm.login import EACH_STEP, SMALL, Login, log, wait_for
from tools.testbed.testbed_cluster import Testbed
from tools.testing.weights import info
from train_anywhere.files import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]


@pytest.mark.slow
def test_the_same_command_inside_salloc_runs_at_once(login: Login) -> None:
    words = ["cluster=slurm", "trainer.nodes=2", "trainer.devices=1", *SMALL]
    command = [sys.executable, str(ROOT / "src" / "train.py"), *words, f"paths.results={login.results}"]
    environ = {"OMP_NUM_THREADS": "1"}
    done = login.testbed.run(["salloc", "--nodes=2", "--gpus-per-node=1", *command], env=environ, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "In this allocation: 2 nodes, 2 ranks" in done.stdout
    assert "test/acc 0." in done.stdout
    run = (login.results / "latest").resolve()
    assert info(run)["state"] == "completed"
    too_many = login.testbed.run(
        ["salloc", "--nodes=1", "--cpus-per-task=2", *command], env=environ, timeout=60
    )
    assert too_many.returncode == 2
    assert "use trainer.nodes=1" in too_many.stderr
    auto = [*command[:2], "cluster=slurm", "dry_run=true"]
    shown = login.testbed.run(["salloc", "--gpus-per-node=3", *auto], env=environ, timeout=60)
    assert "ranks       3\n" in shown.stdout, shown.stderr


CPU = ("trainer.devices=2", "trainer.accelerator=cpu")
CHOOSE = 'scontrol show hostnames; exec "$1" "$2" "cluster.nodelist=$(scontrol show hostnames | tail -n 1)" "${@:3}"'


@pytest.mark.parametrize(
    "launch",
    ["srun", *(pytest.param(n, marks=pytest.mark.slow) for n in ("torchrun", "mpirun", "horovodrun"))],
)
def test_some_nodes_of_an_allocation(login: Login, launch: str) -> None:
    """The second of two nodes runs all ranks. A node outside the allocation is refused."""
    # the shell of a site with LaunchParameters=use_interactive_step is on the first node
    salloc = ["salloc", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4"]
    shell = ["srun", "--nodes=1", "--ntasks=1", "--overlap", "bash", "-c", CHOOSE, "-", sys.executable]
    words = ["cluster=slurm", f"launch={launch}", *CPU, f"paths.results={login.results}"]
    program = ["--", str(ROOT / "examples/programs/resumable.py"), "--epochs", "3"]
    command = [*salloc, *shell, str(ROOT / "src" / "run.py"), *words]
    done = login.testbed.run([*command, *program], env={"OMP_NUM_THREADS": "1"}, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "In this allocation: 1 nodes, 2 ranks" in done.stdout
    # a rank that starts late may find all epochs done
    assert done.stdout.count("starting at epoch") == 2 and "epoch 3/3" in done.stdout
    first, last = done.stdout.splitlines()[:2]
    assert first != last and info((login.results / "latest").resolve())["hosts"] == [last]
    refused = login.testbed.run([*command, "cluster.nodelist=node9", *program], timeout=60)
    assert refused.returncode == 2 and "names node9, and this allocation" in refused.stderr, refused.stderr


@pytest.mark.slow
def test_ctrl_c_while_waiting_leaves_the_job(login: Login) -> None:
    """The job continues until it is cancelled, which is not an error of its monitor."""
    words = ["cluster=slurm", "wait=true", *EACH_STEP, f"paths.results={login.results}"]
    command = [sys.executable, str(ROOT / "src" / "train.py"), *words]
    environ = {**login.testbed.env(), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=login.folder, env=environ, stderr=subprocess.PIPE, text=True) as first:
        wait_for(lambda: [*login.results.glob("*/*/monitor/*.csv")], login.results, 120)
        first.send_signal(signal.SIGINT)
        said = first.communicate(timeout=60)[1]
    [run] = {path.parent.parent for path in login.results.glob("*/*/monitor/*.csv")}
    [job] = (run / "jobs.txt").read_text().split()
    assert first.returncode == 130 and f"no longer waiting; job {job} continues." in said, said
    assert login.testbed.run(["squeue", "--noheader", f"--jobs={job}", "--format=%T"]).stdout == "RUNNING\n"
    login.testbed.run(["scancel", job])
    login.testbed.wait_job(job, 60)
    assert (run / "monitor" / "errors.txt").read_text() == ""


@pytest.mark.slow
def test_slurm_s_own_verdict(login: Login) -> None:
    done = login.command("train", "cluster=slurm", "dry_run=test")
    assert done.returncode == 0, done.stderr
    assert "sbatch --test-only: sbatch: Job" in done.stdout
    refused = login.command("train", "cluster=slurm", "dry_run=test", "cluster.partition=nothere")
    assert refused.returncode == 2
    assert "invalid partition" in refused.stderr.lower()


HOSTILE = 'we\'ird "q"; $(touch HACKED) `touch HACKED` #x %j \\ é'


@pytest.mark.slow
def test_hostile_values_survive_the_real_sbatch(testbed: Testbed, shared_dir: Path) -> None:
    """The results folder and the comment are hostile. Slurm returns the comment unchanged."""
    folder = shared_dir / "my $(touch HACKED) 'results'; #1"
    hostile = Login(testbed, folder)
    value = HOSTILE.replace("'", "\\'")  # in Hydra's quotes
    job, run = hostile.submit("cluster=slurm", f"cluster.comment='{value}'", *SMALL)
    assert testbed.wait_job(job, 120) == "COMPLETED", log(run)
    assert f"Comment={HOSTILE} \n" in testbed.run(["scontrol", "show", "job", job]).stdout
    assert (run / f"slurm-{job}.out").exists()
    assert not list(shared_dir.rglob("HACKED")) and not Path("HACKED").exists()


@pytest.mark.slow
def test_a_user_without_rights_submits_too(
    testbed: Testbed, shared_dir: Path, require: Callable[[object, str], None]
) -> None:
    """Alice submits a project that root owns."""
    python, packages = sys.executable, sysconfig.get_path("purelib")
    # alice can't run an interpreter below /root: she takes the system's, with our packages
    if os.path.realpath(python).startswith("/root/"):
        python = f"/usr/bin/python3.{sys.version_info.minor}"
        require(os.path.exists(python), f"apt-get install {Path(python).name}")
    program = str(ROOT / "src" / "train.py")
    command = [python, program, "cluster=slurm", *SMALL, f"paths.results={shared_dir}/r"]
    done = testbed.run(command, user="alice", env={"OMP_NUM_THREADS": "1", "PYTHONPATH": packages})
    assert done.returncode == 0, done.stderr
    found = re.match(r"Submitted job (\d+)", done.stdout)
    assert found, done.stdout
    assert testbed.wait_job(found[1], 120) == "COMPLETED", log((shared_dir / "r/latest").resolve())
