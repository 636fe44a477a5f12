"""Submissions to a real Slurm whose clients hesitate, and repeated submissions."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.tests.slurm.login import SMALL, Login
from engine.tests.slurm.scripts import tool
from tools.testbed import testbed_config
from tools.testbed.testbed_cluster import Testbed
from tools.testing.weights import info
from train_anywhere.errors import SubmitError
from train_anywhere.features import restarts
from train_anywhere.runs import lock
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.scheduler import client

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

UNREACHED = "echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)' >&2; exit 1"
TIMED_OUT = (
    "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
)

HICCUPS = {
    "not reached": UNREACHED,
    "lost on the way there": TIMED_OUT,
    "lost on the way back": f'{{real}} "$@" >/dev/null; {TIMED_OUT}',
    "no answer": '{real} "$@" >/dev/null',
}

LATER = ("cluster=slurm", "cluster.begin=now+1hour")


@pytest.fixture
def hesitate(login: Login, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], None]]:
    """Let the n-th call of sbatch do something else."""
    folder, environ = login.folder / "bin", login.testbed.env()
    folder.mkdir()
    real = shutil.which("sbatch", path=environ["PATH"])

    def set_up(instead: str, call: int) -> None:
        count = f'echo >>{folder}/calls; [ "$(wc -l <{folder}/calls)" != {call} ] || {{ {instead.format(real=real)}; exit; }}'
        tool(folder / "sbatch", f'{count}\nexec {real} "$@"')

    monkeypatch.setattr(login.testbed, "env", lambda: {**environ, "PATH": f"{folder}:{environ['PATH']}"})
    yield set_up
    login.testbed.run(["scancel", "--user=root"])


def queued(login: Login) -> list[str]:
    listed = login.testbed.run(["squeue", "--noheader", "--states=PENDING", "--format=%i %o"]).stdout
    return sorted(line.split()[0] for line in listed.splitlines() if str(login.results) in line)


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("instead", HICCUPS.values(), ids=HICCUPS)
@pytest.mark.quick("no answer-1")
def test_one_hiccup_loses_no_link_of_a_chain(
    login: Login, hesitate: Callable[[str, int], None], instead: str, call: int
) -> None:
    hesitate(instead, call)
    said = login.train(*LATER, "cluster.chain=3", "cluster.requeue=false")
    found = re.match(r"Submitted job (\d+) -> (\d+) -> (\d+)", said)
    assert found, said
    assert queued(login) == sorted(found.groups())
    [jobs] = login.results.glob("*/*/jobs.txt")
    assert jobs.read_text().split() == [*found.groups()]


@pytest.mark.slow
def test_a_hiccup_at_the_resubmission_of_a_member(login: Login, hesitate: Callable[[str, int], None]) -> None:
    """The other members of the array wait in the queue: none of them is taken for the new job."""
    job, run = login.submit(*LATER, "-m", "seed=1,2,3,4", "cluster.max_running=2")
    hesitate(HICCUPS["lost on the way back"], 1)
    for member in (1, 2):
        login.testbed.run(["scancel", f"{job}_{member}"])
    sweep = run.name.removesuffix("-0")
    said = login.jobs("resubmit", sweep)
    new = str(int(job) + 1)
    assert said.startswith(f"Submitted job {new}: ")
    assert "ArrayTaskThrottle=2" in login.testbed.run(["scontrol", "show", "job", new]).stdout
    for member in (1, 2):
        assert (
            run.with_name(f"{sweep}-{member}").joinpath("jobs.txt").read_text().split()[-1]
            == f"{new}_{member}"
        )


@pytest.mark.slow
def test_when_slurm_stays_away_the_submission_says_what_to_type(
    login: Login, hesitate: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hesitate(UNREACHED, 1)
    script = login.folder / "bin" / "sbatch"
    script.write_text(f"#!/bin/bash\n{UNREACHED}\n")
    monkeypatch.setenv("PATH", login.testbed.env()["PATH"])
    monkeypatch.setattr(client, "RETRY_S", 4.0)
    with pytest.raises(
        client.SubmitError, match=r"connect failure\)\. Type the command again when `squeue --me` answers"
    ):
        client.submit_script("slurm", script)


def test_resubmit_keeps_the_options_of_the_submission(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = login.testbed.env
    with monkeypatch.context() as shell:
        shell.setattr(
            login.testbed, "env", lambda: {**ours(), "SBATCH_PARTITION": "scavenge", "SBATCH_ACCOUNT": "mine"}
        )
        _, run = login.submit(*LATER, "cluster.chain=2")
    [first, second] = (run / "jobs.txt").read_text().split()
    login.testbed.run(["scancel", first, second])
    again = re.match(r"Submitted job (\d+) -> (\d+): ", login.jobs("resubmit", run.name))
    assert again
    for new in again.groups():
        shown = login.testbed.run(["scontrol", "show", "job", new]).stdout
        assert "Partition=scavenge" in shown and "Account=mine" in shown and "Reason=None" not in shown
    login.testbed.run(["scancel", *again.groups()])


def test_the_lock_of_a_member_that_has_ended_is_not_held_by_the_others(
    testbed: Testbed, shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks name a member as 24_1. Earlier versions wrote its number, which may be the array's."""
    monkeypatch.setenv("PATH", testbed.env()["PATH"])
    (shared_dir / "a.sh").write_text("#!/bin/bash\nsleep 300\n")
    submitted = ["sbatch", "--parsable", "--array=0-2", "--output=/dev/null", f"{shared_dir}/a.sh"]
    array = testbed.run(submitted).stdout.strip()

    def numbers() -> dict[str, str]:
        listed = testbed.run(
            ["squeue", "--noheader", "--states=RUNNING", "--format=%i %A", f"--jobs={array}"]
        )
        return dict(line.split() for line in listed.stdout.splitlines())

    testbed.machines.wait_for(lambda: len(numbers()) == 3, "the members do not run")
    members = numbers()
    assert all(lock.is_job_running(name) and lock.is_job_running(number) for name, number in members.items())
    leader = next(name for name, number in members.items() if number == array)
    testbed.run(["scancel", leader])
    testbed.machines.wait_for(lambda: leader not in numbers(), "the leader does not end")
    testbed.machines.wait_for(lambda: lock.read_job_states(leader) == [], "the leader stays in the queue")
    assert lock.is_job_running(leader) is False and lock.is_job_running(array) is False
    assert all(
        lock.is_job_running(name) and lock.is_job_running(number)
        for name, number in members.items()
        if name != leader
    )
    testbed.run(["scancel", array])
    assert lock.is_job_running("999999") is False


@pytest.mark.slow
def test_what_slurm_conf_forbids_is_said_before_a_folder_is_made(
    slurm_root: Path, shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = testbed_config.write_all

    def write_all(layout: testbed_config.Layout) -> None:
        write(layout)
        conf = layout.dir / "etc/slurm/slurm.conf"
        text = (
            conf.read_text()
            .replace("select/cons_tres", "select/linear")
            .replace("CR_Core_Memory", "CR_Memory")
        )
        conf.write_text(text + "MaxArraySize=6\n")

    monkeypatch.setattr(testbed_config, "write_all", write_all)
    with Testbed(slurm_root / "testbed-linear", nodes=2, share=[slurm_root / "shared"]) as testbed:
        login = Login(testbed, shared_dir)
        here = f"paths.results={login.results}"
        uneven = ("trainer.nodes=2", "trainer.total_devices=3")
        wrong = {
            ("-m", "seed=range(7)"): "7 members, but an array of this cluster can have at most 6 (MaxArraySize",
            uneven: "SelectType=select/linear (SelectTypeParameters=CR_MEMORY)",
        }  # fmt: skip
        for words, says in wrong.items():
            for dry in ([], ["dry_run=test"], ["dry_run=true"]):
                refused = login.command("train", "cluster=slurm", *words, *dry, here)
                assert refused.returncode == 2 and says in refused.stderr, refused
        assert not login.results.exists()
        for words in (("-m", "seed=range(6)"), ("trainer.nodes=2", "trainer.devices=2")):
            assert login.command("train", *LATER, *words, here).returncode == 0


def test_a_shell_whose_allocation_is_over(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = login.testbed.env
    left = {"SLURM_JOB_ID": "424242", "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NUM_NODES": "1"}
    several = {**left, "SLURM_STEP_NUM_TASKS": "4"}  # of `srun --ntasks=4 --pty bash`
    for shell in (left, {"SLURM_JOB_ID": "424242"}, {**left, "ENVIRONMENT": "BATCH"}, several):
        with monkeypatch.context() as typed:
            typed.setattr(login.testbed, "env", lambda shell=shell: {**ours(), **shell})
            refused = login.command("train", "cluster=slurm", f"paths.results={login.results}")
        assert refused.returncode == 2
        assert "that job has ended" in refused.stderr and "`unset SLURM_JOB_ID`" in refused.stderr
    assert not login.results.exists()


def test_a_shell_that_knows_only_a_part_of_its_allocation(login: Login) -> None:
    command = login.command("train", "--help").args[:2]
    only = ["env", "-u", "SLURM_JOB_NODELIST", *command, "cluster=slurm", f"paths.results={login.results}"]
    refused = login.testbed.run(["salloc", "--nodes=1", "--cpus-per-task=4", *only], timeout=60)
    assert refused.returncode == 2
    assert "is set but SLURM_JOB_NODELIST not" in refused.stderr
    assert not login.results.exists()


@pytest.mark.slow
def test_the_shell_of_a_step_trains_on_its_whole_allocation(login: Login) -> None:
    command = login.command("train", "--help").args[:2]
    words = [
        "cluster=slurm",
        *SMALL,
        "launch=mpirun",
        "trainer.nodes=2",
        "trainer.devices=1",
        "trainer.accelerator=cpu",
    ]
    alloc = ["salloc", "--nodes=2", "--ntasks-per-node=1", "srun", "--nodes=1", "--ntasks=1", "--overlap"]
    environ = {"OMP_NUM_THREADS": "1"}
    inside = [*alloc, *command, *words, "cluster.cpus_per_task=1", f"paths.results={login.results}"]
    done = login.testbed.run(inside, env=environ, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = login.results.glob("*/*/run.json")
    assert len(info(run.parent)["hosts"]) == 2


@pytest.mark.slow
def test_a_notebook_that_is_a_batch_job_may_submit(login: Login) -> None:
    command = login.command("train", "--help").args[:2]
    words = " ".join([*command, *LATER, f"paths.results={login.results}"])
    script, out = login.folder / "notebook.sh", login.folder / "out"
    script.write_text(
        f"#!/bin/bash\n{words}\nTRAIN_JOB=$SLURM_JOB_ID {words}\nsrun --ntasks=2 --overcommit {words}\n"
    )
    job = login.testbed.run(
        ["sbatch", "--parsable", f"--output={out}", "--cpus-per-task=2", str(script)]
    ).stdout.strip()
    login.testbed.wait_job(job, 90)
    said = out.read_text()
    assert said.startswith("Submitted job "), said
    assert f"note: this command runs inside job {job}: the run will be a separate job" in said
    assert said.count("a job can't submit another") == 3
    assert len(queued(login)) == 1
    login.testbed.run(["scancel", *queued(login)])


def test_a_member_whose_script_is_gone_goes_back_to_the_queue_alone(
    testbed: Testbed, shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm may not answer the first try. The member has the array's own number."""
    monkeypatch.setenv("PATH", f"{shared_dir}:{testbed.env()['PATH']}")
    (shared_dir / "a.sh").write_text("#!/bin/bash\nsleep 300\n")
    submitted = [
        "sbatch", "--parsable", "--requeue", "--array=0-1", "--output=/dev/null", f"{shared_dir}/a.sh",
    ]  # fmt: skip
    array = testbed.run(submitted).stdout.strip()

    def states() -> dict[str, str]:
        listed = testbed.run(["squeue", "--noheader", "--array", "--format=%i %T", f"--jobs={array}"]).stdout
        return dict(line.split() for line in listed.splitlines())

    testbed.machines.wait_for(lambda: [*states().values()] == ["RUNNING"] * 2, "the members do not run")
    shown = testbed.run(["scontrol", "show", "job", "--oneliner", array]).stdout
    [leader] = re.findall(rf"^JobId={array} .*ArrayTaskId=(\d+)", shown, re.MULTILINE)
    for name, value in {"JOB_ID": array, "ARRAY_JOB_ID": array, "ARRAY_TASK_ID": leader}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(restarts, "SILENT_S", 0.0)
    monkeypatch.setattr(restarts, "answers", lambda job, host: False)
    real = shutil.which("scontrol", path=testbed.env()["PATH"])
    once = f"[ $1 != requeue ] || [ -e {shared_dir}/failed ] || {{ touch {shared_dir}/failed; exit 1; }}"
    tool(shared_dir / "scontrol", f'{once}\nexec {real} "$@"')
    watch = restarts.ScriptWatch(RunDir(shared_dir), True, 1, "node1")
    for _ in range(3):
        watch.poll(0.0)
    assert states()[f"{array}_{1 - int(leader)}"] == "RUNNING"
    assert states()[f"{array}_{leader}"] != "RUNNING"
    testbed.run(["scancel", array])


def test_an_option_that_sbatch_does_not_know_fails_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another refusal, as of a cluster that is not this one, only says that the start is not known."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for message, refused in (
        ("unrecognized option '--het-group=0'", True),
        ("error: Invalid --begin specification", True),
        ("error: invalid partition x", False),
    ):
        tool(tmp_path / "sbatch", f'echo "sbatch: {message}" >&2\nexit 255')
        if refused:
            with pytest.raises(SubmitError, match=message):
                client.estimate_start("#!/bin/sh\n")
        else:
            assert "not known" in client.estimate_start("#!/bin/sh\n")
