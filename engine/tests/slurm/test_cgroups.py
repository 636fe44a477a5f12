"""Stopped jobs on Slurm with control groups, which signals tasks but not their children."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm import test_requeue, test_resumed_programs
from engine.tests.slurm.login import Login
from tools.testbed.testbed_cluster import Testbed

FREEZER = Path("/sys/fs/cgroup/freezer/cgroup.procs")

# not parallel: testbeds share the control groups of nodes with the same name
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.slurm, pytest.mark.needs_root]


@pytest.fixture(scope="session")
def testbed(testbed_for: Callable[..., Testbed]) -> Testbed:
    """The tests of other files run with control groups here."""
    if not os.access(FREEZER, os.W_OK):
        pytest.skip(f"needs root, and control groups of version 1 at {FREEZER.parent}")
    return testbed_for("slurm", conf="ProctrackType=proctrack/cgroup")


CHILD = r"""
import signal, subprocess, sys, time
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "child"])
signal.signal(signal.SIGUSR1, lambda *_: print(*sys.argv[1:], "signalled\n", end="", flush=True))
print("ready\n", end="", flush=True)
end = time.monotonic() + 6
while time.monotonic() < end:
    time.sleep(0.1)
"""


def test_a_child_of_a_task_gets_no_signal(testbed: Testbed, shared_dir: Path) -> None:
    """The other tests rely on this."""
    program, out = shared_dir / "child.py", shared_dir / "out.txt"
    program.write_text(CHILD)
    script = f"srun python3 {program} & sleep 3; kill -USR1 $!; wait $!"
    job = testbed.run(["sbatch", "--parsable", f"--output={out}", f"--wrap={script}"]).stdout.strip()
    assert testbed.wait_job(job, 60) == "COMPLETED"
    assert sorted(out.read_text().split()) == ["ready", "ready", "signalled"]


@pytest.mark.horovod
@pytest.mark.mpi
@pytest.mark.parametrize(
    "job",
    [
        "srun trainer.nodes=2 trainer.devices=1",
        "mpirun trainer.nodes=2 trainer.devices=1",
        *(
            f"{launch} trainer.nodes={nodes}"
            for launch in ("torchrun", "horovodrun strategy=horovod")
            for nodes in ("2 trainer.devices=1", "2 trainer.total_devices=3", "1-2 trainer.devices=1")
        ),
    ],
)
def test_a_job_that_is_told_to_stop_requeues_itself(login: Login, job: str) -> None:
    words = f"launch={job}".split()
    test_requeue.test_a_job_that_is_told_to_stop_requeues_itself_and_goes_on(login, words)


@pytest.mark.horovod
@pytest.mark.mpi
def test_preempted_ranks_save(login: Login, slow_steps: str, shared_dir: Path) -> None:
    launches = ["srun", "torchrun", "mpirun", "horovodrun strategy=horovod"]
    test_requeue.test_preemption_by_a_job_of_a_higher_partition(login, slow_steps, shared_dir, launches)


@pytest.mark.mpi
@pytest.mark.parametrize("launch", ["srun", "torchrun", "mpirun"])
def test_each_rank_of_a_program_gets_one_signal(
    login: Login, launch: str, request: pytest.FixtureRequest
) -> None:
    test_resumed_programs.test_each_rank_gets_one_signal(login, launch, request)
