"""Ranks of real jobs know their place, and Horovod starts from it on uneven nodes."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from tools.testbed.testbed_cluster import REPOSITORY, Testbed

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

SHOW = """
import dataclasses, json, sys
from train_anywhere.distributed.discover import discover
sys.stdout.write(json.dumps(dataclasses.asdict(discover())) + chr(10))
"""
BIN = Path(sys.executable).parent
TORCHRUN = f"{BIN}/torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=node1:29400 --no-python"
MPIRUN = "mpirun --allow-run-as-root -x TRAIN_HOSTS -x MASTER_ADDR -x MASTER_PORT"
EVEN, UNEVEN = ["--nodes=2", "--ntasks-per-node=2"], ["--nodes=2", "--ntasks=3", "--distribution=block"]
TWO_TWO = [(0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, 2), (3, 1, 1, 2)]
TWO_ONE = [(0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, 1)]


def submit(testbed: Testbed, folder: Path, options: list[str], command: str) -> str:
    """Run a batch job that starts `command` and return what its ranks wrote."""
    script = folder / "job.sh"
    script.write_text(
        f"#!/bin/bash\ncd {REPOSITORY}\nexport OMP_NUM_THREADS=1 PYTHONPATH={REPOSITORY}/engine\n{command}\n"
    )
    (folder / "show.py").write_text(SHOW)
    words = ["sbatch", "--parsable", f"--output={folder}/out", *options, str(script)]
    done = testbed.run(words, cwd=folder)
    assert done.returncode == 0, done.stderr
    state = testbed.wait_job(done.stdout.strip(), timeout=180)
    text = (folder / "out").read_text()
    assert state == "COMPLETED", text
    return text


@pytest.mark.parametrize(
    ("launcher", "options", "command", "places"),
    [
        ("srun", EVEN, "srun", TWO_TWO),
        ("srun", UNEVEN, "srun", TWO_ONE),
        pytest.param("torchrun", EVEN, f"srun --ntasks-per-node=1 --ntasks=2 {TORCHRUN}", TWO_TWO, marks=pytest.mark.slow),
        pytest.param("mpirun", UNEVEN, MPIRUN, TWO_ONE, marks=pytest.mark.mpi),
        ("none", EVEN, "", [(0, 0, 0, 1)]),
    ],
    ids=["srun 2x2", "srun 2+1", "torchrun", "mpirun 2+1", "batch shell"],
)  # fmt: skip
@pytest.mark.quick("batch shell", "mpirun 2+1")
def test_real_ranks(testbed, shared_dir, require, launcher, options, command, places):
    if launcher == "mpirun":
        require(shutil.which("mpirun"), "apt-get install openmpi-bin")
    hosts = ",".join(f"node{n + 1}:{sum(place[2] == n for place in places)}" for n in range(2))
    job = f"export TRAIN_HOSTS={hosts} MASTER_ADDR=node1 MASTER_PORT=12000"  # as the batch script does
    text = submit(testbed, shared_dir, options, f"{job}\n{command} {sys.executable} {shared_dir}/show.py")
    ranks = sorted(
        (json.loads(line) for line in text.splitlines() if line.startswith("{")), key=lambda t: t["rank"]
    )
    assert [(t["rank"], t["local_rank"], t["node_rank"], t["local_world_size"]) for t in ranks] == places
    shared = {(t["launched_by"], t["world_size"], t["nodes"], t["coordinator_port"]) for t in ranks}
    assert {(s, w, n) for s, w, n, _ in shared} == {(launcher, len(places), 2 if len(places) > 1 else 1)}
    assert len(shared) == 1
    if len(places) > 1:
        assert {t["coordinator_address"] for t in ranks} == {"node1"}
