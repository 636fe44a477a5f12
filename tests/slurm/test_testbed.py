"""The testbed is a real cluster: everything that the project's Slurm tests lean on, shown once."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm.testbed.cluster import REPOSITORY, Testbed
from slurm.testbed.errors import TestbedError
from slurm.testbed.requirements import missing
from slurm.testbed.sites import SITES

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]


def submit(testbed: Testbed, folder: Path, script: str, *options: str, user: str | None = None) -> str:
    """Write a batch script, submit it from `folder` and return the job id; output goes to out-<job id>."""
    path = folder / "job.sh"
    path.write_text("#!/bin/bash\n" + script)
    words = ["sbatch", "--parsable", "--output=out-%j", "--open-mode=append", *options, str(path)]
    done = testbed.run(words, cwd=folder, user=user)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_for(done: Callable[[], bool], what: str, timeout: float = 40) -> None:
    end = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < end, f"{what} did not happen in {timeout} s"
        time.sleep(0.05)


def test_every_node_has_its_own_name_address_tmp_and_shm(testbed: Testbed) -> None:
    look = "echo $(hostname) $(hostname -I) $(ls /tmp/mine /dev/shm/mine 2>/dev/null | wc -l); touch /tmp/mine /dev/shm/mine"
    lines = testbed.run(["srun", "--nodes=4", "bash", "-c", look]).stdout.splitlines()
    again = testbed.run(["srun", "--nodes=4", "bash", "-c", look]).stdout.splitlines()
    assert sorted(lines) == [f"node{n} 10.77.0.{n} 0" for n in range(1, 5)]
    assert sorted(again) == [f"node{n} 10.77.0.{n} 2" for n in range(1, 5)]
    assert not Path("/tmp/mine").exists()


def test_nodes_see_the_repository_and_the_shared_folder(testbed: Testbed, shared_dir: Path) -> None:
    (shared_dir / "from_outside").touch()
    done = testbed.run(
        ["srun", "--nodes=2", "ls", str(shared_dir), str(REPOSITORY / "slurm/testbed/cluster.py")]
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("from_outside") == 2


def test_shims_on_path_reach_the_cluster_and_jobs_do_not_inherit_them(testbed: Testbed) -> None:
    words = ["srun", "--ntasks=1", "sh", "-c", "command -v srun; echo $PATH"]
    done = subprocess.run(words, env=testbed.env(), capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.startswith("/usr/bin/srun")
    assert str(testbed.dir) not in done.stdout


def test_gpus_are_given_out_and_counted(testbed: Testbed) -> None:
    def gpus(*options: str) -> list[str]:
        return testbed.run(["srun", *options, "printenv", "CUDA_VISIBLE_DEVICES"]).stdout.splitlines()

    assert gpus("--nodes=2", "--gres=gpu:2") == ["0,1", "0,1"]
    assert gpus("--nodes=1", "--gpus-per-node=8") == ["0,1,2,3,4,5,6,7"]
    refused = testbed.run(["sbatch", "--gres=gpu:9", "--wrap=true"])
    assert "Requested node configuration is not available" in refused.stderr


def test_typed_gpus_features_and_partition_of_a_site(testbed_for: Callable[..., Testbed]) -> None:
    ibex = testbed_for("ibex")
    words = [
        "--partition=batch",
        "--constraint=v100&cpu_intel_platinum_8260",
        "--gpus=v100:8",
        "--cpus-per-gpu=5",
    ]
    assert ibex.run(["sbatch", "--test-only", *words, "--wrap=true"]).returncode == 0
    assert ibex.run(["sbatch", "--test-only", *words, "--gpus=a100:8", "--wrap=true"]).returncode != 0
    assert (
        ibex.run(["sbatch", "--test-only", *words, "--cpus-per-gpu=6", "--nodes=1", "--wrap=true"]).returncode
        != 0
    )


def test_job_array_completes_with_output(testbed: Testbed, shared_dir: Path) -> None:
    job = submit(
        testbed, shared_dir, "echo $SLURM_ARRAY_TASK_ID > member-$SLURM_ARRAY_TASK_ID", "--array=1-3%2"
    )
    assert testbed.wait_job(job) == "COMPLETED"
    assert sorted(p.name for p in shared_dir.glob("member-*")) == ["member-1", "member-2", "member-3"]
    failing = submit(testbed, shared_dir, "exit $SLURM_ARRAY_TASK_ID", "--array=0-1")
    assert testbed.wait_job(failing) == "FAILED"


def test_requeue_keeps_the_job_id_and_counts(testbed: Testbed, shared_dir: Path) -> None:
    script = 'echo "start ${SLURM_RESTART_COUNT:-0}"\n[ "$SLURM_RESTART_COUNT" ] || sleep 60\n'
    job = submit(testbed, shared_dir, script)
    output = shared_dir / f"out-{job}"
    wait_for(lambda: output.exists() and "start 0" in output.read_text(), "first start")
    assert testbed.run(["scontrol", "requeue", job]).returncode == 0
    assert testbed.wait_job(job) == "COMPLETED"
    assert re.findall("start .", output.read_text()) == ["start 0", "start 1"]


def test_urgent_job_preempts_scavenger_which_runs_again(testbed: Testbed, shared_dir: Path) -> None:
    script = "trap 'echo told; exit 1' TERM\necho \"start ${SLURM_RESTART_COUNT:-0}\"\n"
    script += '[ "$SLURM_RESTART_COUNT" ] || { sleep 60 & wait; }\n'
    job = submit(testbed, shared_dir, script, "--partition=scavenge", "--nodes=4", "--exclusive")
    output = shared_dir / f"out-{job}"
    wait_for(lambda: output.exists() and "start 0" in output.read_text(), "first start")
    urgent = testbed.run(["srun", "--partition=urgent", "--nodes=4", "--exclusive", "true"])
    assert urgent.returncode == 0, urgent.stderr
    assert testbed.wait_job(job) == "COMPLETED"
    assert "start 1" in output.read_text()


def test_job_of_a_dead_node_is_requeued_on_another(testbed: Testbed, shared_dir: Path) -> None:
    job = submit(testbed, shared_dir, 'hostname\n[ "$SLURM_RESTART_COUNT" ] || sleep 90\n', "--exclude=node1")
    output = shared_dir / f"out-{job}"
    wait_for(lambda: output.exists() and output.read_text() != "", "first start")
    victim = output.read_text().strip()
    testbed.kill_node(victim)
    try:
        assert testbed.wait_job(job, timeout=60) == "COMPLETED"
    finally:
        testbed.boot_node(victim)
    assert output.read_text().split()[-1] != victim
    ready = ["sinfo", "--noheader", f"--nodes={victim}", "--partition=main", "--format=%T"]
    wait_for(lambda: testbed.run(ready).stdout.strip() == "idle", f"{victim} coming back")


@pytest.mark.mpi
def test_mpirun_and_pmix_start_ranks_on_two_nodes(testbed: Testbed, shared_dir: Path) -> None:
    script = 'mpirun bash -c "echo mpirun $(hostname) \\$(hostname) \\$OMPI_COMM_WORLD_RANK"\n'
    script += 'timeout 20 srun --mpi=pmix bash -c "echo pmix \\$(hostname) \\$PMIX_RANK"\n'
    job = submit(testbed, shared_dir, script, "--nodes=2", "--ntasks-per-node=2")
    assert testbed.wait_job(job) == "COMPLETED"
    lines = (shared_dir / f"out-{job}").read_text().splitlines()
    first, second = sorted({line.split()[2] for line in lines if line.startswith("mpirun")})
    assert sorted(line.split()[2:] for line in lines if line.startswith("mpirun")) == [
        [first, "0"],
        [first, "1"],
        [second, "2"],
        [second, "3"],
    ]
    assert sorted(line.split()[1:] for line in lines if line.startswith("pmix")) == [
        [first, "0"],
        [first, "1"],
        [second, "2"],
        [second, "3"],
    ]
