"""The batch script on a real Slurm: array members, signals, no answers, a shell's leftovers."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.tests.slurm.login import EACH_STEP, Login, hosts, log, trained, wait_for
from engine.tests.slurm.scripts import tool
from tools.testing.processes import start_python
from tools.testing.weights import info
from train_anywhere.distributed.discover import job_port

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

ONE = (
    "cluster=slurm", "trainer.accelerator=cpu", "trainer.devices=1", "cluster.cpus_per_task=1", "data.workers=0",
)  # fmt: skip
SHORT = (*ONE, "model=mlp", "trainer.max_epochs=1", "trainer.max_steps=3", "monitor.tensorboard=false")


def usr1(login: Login, job: str) -> None:
    """Slurm's warning ahead of a time limit, to the batch script only."""
    assert login.testbed.run(["scancel", "--signal=USR1", "--batch", job]).returncode == 0


def states(login: Login, array: str) -> dict[str, str]:
    """State of each member of an array."""
    said = login.testbed.run(
        ["squeue", "--noheader", "--array", "--states=all", "--jobs", array, "--format=%i %T"]
    )
    return dict(line.split() for line in said.stdout.splitlines())


def exported(login: Login, monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """A shell on the login node in which these are exported."""
    environ = {**login.testbed.env(), **variables}
    monkeypatch.setattr(login.testbed, "env", lambda: environ)


@pytest.mark.slow
def test_only_the_member_that_stops_is_requeued(login: Login, slow_steps: str) -> None:
    """One of three running members is cancelled. The last is stopped and has the array's number."""
    login.train("-m", "seed=1,2,3", *ONE, *EACH_STEP, "trainer.max_steps=150", slow_steps)
    runs = sorted({p.parent for p in login.results.glob("*/*/jobs.txt")}, key=lambda run: run.name)
    array = (runs[0] / "jobs.txt").read_text().partition("_")[0]
    for run in runs:
        wait_for(lambda run=run: trained(run) > 1, run, 200)
    login.testbed.run(["scancel", f"{array}_1"])
    wait_for(lambda: states(login, array)[f"{array}_1"] == "CANCELLED", runs[1], 60)
    usr1(login, f"{array}_2")
    wait_for(lambda: "back to the queue" in log(runs[2]), runs[2], 60)
    wait_for(lambda: {*states(login, array).values()} == {"COMPLETED", "CANCELLED"}, runs[2], 300)
    assert states(login, array)[f"{array}_1"] == "CANCELLED"
    assert [len(info(run)["attempts"]) for run in runs] == [1, 1, 2]


@pytest.mark.parametrize("signal", ["USR1", "TERM"])
@pytest.mark.quick("USR1")
def test_a_signal_before_the_ranks_is_not_lost(login: Login, shared_dir: Path, signal: str) -> None:
    """No signal interrupts the setup. Then the ranks start only at the next start of the job."""
    setup = f"echo setting up; while [ ! -e '{shared_dir}/go' ]; do sleep 0.1; done"
    job, run = login.submit(*SHORT, f'cluster.setup=["{setup}"]')
    wait_for(lambda: "setting up" in log(run), run, 60)
    login.testbed.run(["scancel", f"--signal={signal}", "--batch", job])
    time.sleep(3)  # slurmd passes it on
    (shared_dir / "go").touch()
    assert login.testbed.wait_job(job, 200) == "COMPLETED", log(run)
    assert f"Asked to stop ({signal}) before the ranks were started." in log(run)
    assert log(run).count("setting up") == 2 and len(info(run)["attempts"]) == 1


def test_a_signal_ends_a_step_ahead_of_the_ranks(login: Login, shared_dir: Path) -> None:
    """The job does not wait for the copied data set, and exits with 75 without a requeue."""
    tool(
        shared_dir / "srun",
        f"case $* in *train_anywhere.training.prepare*) touch '{shared_dir}/copies'; exec sleep 600; esac\nexit 1",
    )
    (shared_dir / "x").mkdir()
    words = [
        *SHORT,
        "cluster.requeue=false",
        "data=imagefolder",
        "data.stage=true",
        f"paths.data={shared_dir}/x",
        f"cluster.local_disk={shared_dir}/x",  # so that the pictures are not checked here
    ]
    job, run = login.submit(*words, f"cluster.setup=['export PATH={shared_dir}:$PATH']")
    wait_for(lambda: (shared_dir / "copies").exists(), run, 60)
    usr1(login, job)
    assert login.testbed.wait_job(job, 30) == "FAILED", log(run)
    assert "before the ranks were started" in log(run)


@pytest.mark.parametrize("launch", ["srun", "torchrun", "mpirun"])
@pytest.mark.slow
def test_a_signal_while_the_ranks_start(login: Login, launch: str) -> None:
    """Nothing listens yet, whatever the launcher does with it."""
    long = ("trainer.max_epochs=100", "trainer.max_steps=200")  # two ranks agree to stop every 20 steps
    job, run = login.submit(*SHORT, *long, "trainer.nodes=2", f"launch={launch}")
    # made just after the launcher has started
    wait_for(lambda: (run / "monitor" / "errors.txt").exists(), run, 60)
    usr1(login, job)
    assert login.testbed.wait_job(job, 240) == "COMPLETED", log(run)
    assert "back to the queue" in log(run)


SCONTROL = """case "$1 $2" in
    {which})
        echo x >>'{folder}/calls'
        [ "$(wc -l <'{folder}/calls')" -gt {fails} ] || {{ {how}; }} ;;
esac
exec {real} "$@"
"""


def broken_scontrol(login: Login, which: str, fails: int, how: str) -> str:
    """Return the setup of a job whose scontrol fails for some calls."""
    (folder := login.folder / "bin").mkdir()
    real = login.testbed.run(["sh", "-c", "command -v scontrol"], node="node1").stdout.strip()
    body = SCONTROL.format(which=which, folder=login.folder, fails=fails, how=how, real=real)
    tool(folder / "scontrol", body)
    return f"'export PATH={folder}:$PATH'"


NO_ANSWER = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


@pytest.mark.parametrize(
    ("which", "fails", "how"),
    [
        ("'show job'", 2, NO_ANSWER),
        ("requeue*", 2, NO_ANSWER),
        ("requeue*", 1, "{real} \"$@\"; exit 1"),
        ("'show job'", 1, "sleep 1000"),
    ],
    ids=["show", "requeue", "answer-lost", "hangs"],
)  # fmt: skip
@pytest.mark.slow
def test_a_slurm_that_does_not_answer_is_asked_again(
    login: Login, slow_steps: str, which: str, fails: int, how: str
) -> None:
    real = login.testbed.run(["sh", "-c", "command -v scontrol"], node="node1").stdout.strip()
    broken = broken_scontrol(login, which, fails, how.replace("{real}", real))
    setup = slow_steps.replace('["', f'[{broken},"')
    job, run = login.submit(*ONE, *EACH_STEP, "trainer.max_steps=60", setup)
    wait_for(lambda: trained(run) > 1, run, 120)
    usr1(login, job)
    assert login.testbed.wait_job(job, 240) == "COMPLETED", log(run)
    assert len(info(run)["attempts"]) == 2
    assert "jobs.py resubmit" not in log(run)


@pytest.mark.slow
def test_a_slurm_that_never_answers_is_a_sentence(login: Login, slow_steps: str) -> None:
    broken = broken_scontrol(login, "'show job'", 1000, NO_ANSWER)
    setup = slow_steps.replace('["', f'[{broken},"')
    words = [*ONE, *EACH_STEP, "trainer.max_steps=500", "cluster.signal_seconds=15"]
    job, run = login.submit(*words, setup)
    wait_for(lambda: trained(run) > 1, run, 120)
    usr1(login, job)
    assert login.testbed.wait_job(job, 120) == "FAILED", log(run)
    assert f"Type: python src/jobs.py resubmit {run}\n" in log(run)
    assert info(run)["state"] == "preempted"


LEFT = {
    "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost",
    "TORCHELASTIC_RUN_ID": "1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "PMI_RANK": "0", "PMI_SIZE": "8",
    "PMIX_RANK": "0", "HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "TF_CONFIG": "{}", "PYTHONSAFEPATH": "1",
    "SLURM_MEM_PER_CPU": "500", "SLURM_MEM_PER_GPU": "500", "SLURM_DISTRIBUTION": "cyclic", "SLURM_CPU_BIND": "map_cpu:0",
    "SLURM_GPUS_PER_TASK": "1", "SLURM_TRES_PER_TASK": "cpu:1", "SRUN_CPUS_PER_TASK": "1", "SBATCH_EXPORT": "ALL",
}  # fmt: skip


@pytest.mark.parametrize("launch", ["srun", "torchrun", "mpirun"])
@pytest.mark.slow
def test_what_an_earlier_launcher_has_left_is_not_believed(
    login: Login, monkeypatch: pytest.MonkeyPatch, launch: str
) -> None:
    exported(login, monkeypatch, **LEFT, HOROVOD_CYCLE_TIME="2", OMPI_MCA_btl="tcp,self", PMIX_MCA_gds="hash")
    (login.folder / "environ").mkdir()
    seen = f"cluster.setup=['env >{login.folder}/environ/job']"
    run = login.result(
        *SHORT,
        "cluster.mem=2G",
        "trainer.nodes=2",
        "trainer.devices=2",
        f"launch={launch}",
        "monitor.ranks=true",
        "monitor.sample_seconds=0.5",
        seen,
    )
    assert sorted(hosts(run).items()) == [(0, "node1"), (1, "node1"), (2, "node2"), (3, "node2")]
    there = dict(
        line.split("=", 1)
        for line in (login.folder / "environ" / "job").read_text().splitlines()
        if "=" in line
    )
    assert not {*LEFT} & {*there} - {"PYTHONSAFEPATH", "SLURM_MEM_PER_CPU"}
    assert (
        there["HOROVOD_CYCLE_TIME"] == "2"
        and there["OMPI_MCA_btl"] == "tcp,self"
        and there["PMIX_MCA_gds"] == "hash"
    )
    assert list((run / "monitor").glob("*.csv")), (run / "monitor" / "errors.txt").read_text()


def listener(login: Login, port: int) -> subprocess.Popen[str]:
    """Another program on node1."""
    code = f"import socket, time; s = socket.create_server(('', {port})); print('up', flush=True); time.sleep(600)"
    command = ["slurm/testbed.py", "run", "--dir", login.testbed.dir, "--node", "node1", "--"]
    there = start_python(*command, sys.executable, "-c", code, cwd=login.root)
    assert there.stdout and there.stdout.readline() == "up\n"
    return there


@pytest.mark.slow
def test_a_port_that_is_taken_is_not_taken_again(login: Login, shared_dir: Path) -> None:
    """A retry leads to another port."""
    wait = f"cluster.setup=[\"while [ ! -e '{shared_dir}/go' ]; do sleep 0.1; done\"]"
    words = [*SHORT, "trainer.nodes=2", "cluster.retries=1"]
    job, run = login.submit(*words, wait)
    taken = listener(login, job_port(int(job)))
    try:
        (shared_dir / "go").touch()
        assert login.testbed.wait_job(job, 200) == "COMPLETED", log(run)
        assert f"port {job_port(int(job))} of rank 0's node" in log(run) and "retry 1 of 1" in log(run)
    finally:
        taken.kill()
