"""Trainings on a newer Slurm, whose values for jobs differ between versions.

Not with Horovod: its wheel is built with the installed Open MPI, whose C++ library the newer one does not have.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm import test_again, test_cluster_runs, test_requeue, test_script, test_strategies
from engine.tests.slurm.login import Login, log, per_host
from tools.testbed.testbed_cluster import Testbed

pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.mpi, pytest.mark.needs_root]

CPUS = """
import os, sys
if "--run" in sys.orig_argv:
    print("rank's node", os.uname().nodename, "has CPUs", os.environ["SLURM_CPUS_ON_NODE"], flush=True)
"""
"""Every rank prints the number of CPUs that its step of the job has on its node."""


@pytest.fixture(scope="session")
def testbed(newer_slurm: Testbed) -> Testbed:
    """The tests of other files run on the newer Slurm here."""
    return newer_slurm


def test_the_machines_have_its_programs(testbed: Testbed) -> None:
    """Clients of the login node, and the steps and Open MPI of a job."""
    words = ["srun", "--nodes=2", "bash", "-c", "echo $(slurmd -V) $(mpirun --version | head -n 1)"]
    assert testbed.run(["sinfo", "--version"]).stdout.startswith("slurm-wlm 24.11.")
    assert re.fullmatch(r"(slurm-wlm 24\.11\.\d+ mpirun \(Open MPI\) 5\.\S+\n){2}", testbed.run(words).stdout)


@pytest.mark.parametrize("launch", ["srun", "torchrun", "mpirun"])
def test_two_ranks_on_each_of_two_nodes(login: Login, monkeypatch: pytest.MonkeyPatch, launch: str) -> None:
    test_cluster_runs.test_every_rank_runs_the_engine_of_its_snapshot(login, monkeypatch, launch)


@pytest.mark.parametrize("launch", ["srun", "torchrun", "mpirun"])
def test_ranks_of_an_uneven_job_have_all_their_cpus(login: Login, launch: str) -> None:
    """Two for each of them: four where two ranks are."""
    assert cpus(login, launch) == {("node1", "4"), ("node2", "2")}


def test_ranks_have_as_many_cpus_on_the_installed_slurm(
    testbed_for: Callable[..., Testbed], shared_dir: Path
) -> None:
    assert cpus(Login(testbed_for("slurm"), shared_dir), "torchrun") == {("node1", "4"), ("node2", "2")}


def cpus(login: Login, launch: str) -> set[tuple[str, str]]:
    """Return the CPUs of each node's step in a training with three ranks on two nodes."""
    (login.folder / "sitecustomize.py").write_text(CPUS)
    size = ["trainer.nodes=2", "trainer.total_devices=3", "cluster.cpus_per_task=2", f"launch={launch}"]
    setup = f'cluster.setup=["export PYTHONPATH={login.folder}"]'
    run = login.result("cluster=slurm", *size, *test_strategies.SAME, setup)
    assert per_host(run) == [2, 1]
    return {*re.findall(r"rank's node (\S+) has CPUs (\d+)", log(run))}


def test_a_job_that_is_told_to_stop_requeues_itself(login: Login) -> None:
    words = ["launch=torchrun", "trainer.nodes=2", "trainer.devices=1"]
    test_requeue.test_a_job_that_is_told_to_stop_requeues_itself_and_goes_on(login, words)


def test_daemons_of_the_newer_open_mpi_let_preempted_ranks_save(
    login: Login, slow_steps: str, shared_dir: Path
) -> None:
    test_requeue.test_preemption_by_a_job_of_a_higher_partition(login, slow_steps, shared_dir, ["mpirun"])


@pytest.mark.usefixtures("on_again")
def test_an_elastic_job_loses_a_node_and_takes_it_in_again(login: Login, slow_steps: str) -> None:
    test_again.test_a_node_that_is_back_is_taken_in_by_the_next_requeue(login, slow_steps)


def test_members_of_an_array_stop_alone(login: Login, slow_steps: str) -> None:
    test_script.test_only_the_member_that_stops_is_requeued(login, slow_steps)
