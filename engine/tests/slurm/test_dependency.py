"""`after=RUN`: options of sbatch, refusals, and three commands in a row on a real Slurm."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm.fakes import Fakes
from engine.tests.slurm.login import SMALL, Login, log, wait_for
from tools.testing.weights import info
from train_anywhere.errors import ConfigError, ProjectError
from train_anywhere.files import ROOT
from train_anywhere.slurm.scheduler.client import submit_script
from train_anywhere.slurm.status.dependency import find_dependency


@pytest.fixture(autouse=True)
def nine_jobs(fakes: Fakes) -> None:
    fakes.chain("exit 1", good=9)


def newest(fakes: Fakes) -> Path:
    return (fakes.results / "latest").resolve()


def test_each_job_of_a_chain_waits_for_the_run(fakes: Fakes) -> None:
    """Else the second link would begin when the first was cancelled."""
    fakes.submit("cluster.chain=2")
    first = newest(fakes)
    fakes.submit(f"after={first}", f"init.run={first}", "cluster.chain=2")
    asked = [re.sub(r" /.*", "", words) for words in fakes.asked("sbatch")]
    assert asked[1:] == [
        "--parsable --dependency=afterany:4001",
        "--parsable --dependency=afterok:4002 --kill-on-invalid-dep=yes",
        "--parsable --dependency=afterany:4003,afterok:4002 --kill-on-invalid-dep=yes",
    ]
    assert json.loads((newest(fakes) / "run.json").read_text())["after"] == str(first)


def test_a_run_that_is_complete_is_not_waited_for(fakes: Fakes) -> None:
    fakes.submit()
    first = newest(fakes)
    fakes.queue.write_text("4001|COMPLETED\n")
    (first / "run.json").write_text('{"format": 2, "state": "completed"}')
    fakes.submit(f"after={first.name}")  # by its id
    assert "dependency" not in fakes.asked("sbatch")[1]


@pytest.mark.parametrize(
    ("queue", "state", "says"),
    [
        ("4001|FAILED\n", "failed", "that run failed, so a job that waits for it would never start; resume it first"),
        ("4001|CANCELLED\n", "queued", "that run was cancelled, so"),
        ("4001|TIMEOUT\n", "running", "that run is timeout, so"),
    ],
)  # fmt: skip
def test_a_run_that_will_not_be_complete_is_refused(fakes: Fakes, queue: str, state: str, says: str) -> None:
    fakes.submit()
    fakes.queue.write_text(queue)
    first = newest(fakes)
    (first / "run.json").write_text(json.dumps({"format": 2, "state": state}))
    with pytest.raises(ProjectError, match=says):
        fakes.submit(f"after={first}")
    assert len(fakes.asked("sbatch")) == 1 and newest(fakes) == first


def test_what_init_needs_of_a_run_that_is_not_there_yet_is_looked_at_by_the_job(fakes: Fakes) -> None:
    """Problems that its configuration shows are refused at once."""
    fakes.submit()
    first = newest(fakes)
    with pytest.raises(ConfigError, match="has no checkpoint"):
        fakes.submit(f"init.run={first}")
    with pytest.raises(ConfigError, match=r"was trained with model\._target_=.*use the same model"):
        fakes.submit(f"init.run={first}", f"after={first}", "model=mlp")


def test_a_whole_sweep_is_one_word(fakes: Fakes) -> None:
    folder = fakes.results / "digits"
    for member in range(2):
        run = folder / f"20260101-000000-aaaa-{member}"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text("cluster: {scheduler: slurm}\n")
        (run / "run.json").write_text('{"format": 2, "state": "queued"}')
        (run / "jobs.txt").write_text(f"4001_{member}\n")
    fakes.queue.write_text("4001_0|PENDING\n4001_1|PENDING\n")
    path, jobs = find_dependency(str(folder / "20260101-000000-aaaa"), "slurm", fakes.results)
    assert jobs == ("4001",) and str(path).endswith("aaaa")
    with pytest.raises(ConfigError, match="a job of pbs can't wait for that run, a job of slurm"):
        find_dependency(str(folder / "20260101-000000-aaaa"), "pbs", fakes.results)


def test_pbs_is_told_in_its_words(fakes: Fakes) -> None:
    fakes("qsub", "echo 5.server")
    (fakes.folder / "job.pbs").write_text("")
    submit_script("pbs", fakes.folder / "job.pbs", "3.server", ok=["4[]_1", "4[]_2"])
    assert fakes.asked("qsub")[0].startswith("-W depend=afterany:3.server,afterok:4[] /")


@pytest.mark.slurm
@pytest.mark.needs_root
@pytest.mark.slow
def test_three_commands_that_return_at_once(
    login: Login, train: Callable[..., object], shared_dir: Path
) -> None:
    """Training, training and evaluation run in order. If the first fails, the others end."""
    words = ("cluster=slurm", "model=mlp", *SMALL)
    go = shared_dir / "go"  # jobs wait for it: a busy machine takes long to submit the others
    held = f"until [ -e {go} ]; do sleep 0.2; done"
    _, first = login.submit(*words, f'cluster.setup=["{held}"]')
    second_job, second = login.submit(*words, f"init={first}", f"after={first}")
    job_words = ("cluster=slurm", f"after={second}", f"paths.results={login.results}")
    evaluated = login.command("run", *job_words, "--", str(ROOT / "src/evaluate.py"), str(second))
    assert evaluated.returncode == 0, evaluated.stderr
    assert (
        f"it starts when results/{second.parent.name}/{second.name} is complete (job {second_job})"
        in evaluated.stdout
    )
    assert info(first)["state"] in ("queued", "running") and info(second)["state"] == "queued"
    failing_job, failing = login.submit(*words, f'cluster.setup=["{held}; exit 7"]')
    _, follower = login.submit(*words, f"init={failing}", f"after={failing}", "cluster.chain=2")
    _, last = login.submit(*words, f"after={follower}")
    go.touch()
    wait_for(lambda: any(second.glob("evaluations/test-*.json")), second, 240)
    assert info(first)["ended"] <= info(second)["ended"]
    assert f"weights are those of {first}" in log(second)
    assert login.testbed.wait_job(failing_job, 60) == "FAILED"
    wait_for(lambda: "cancelled" in login.jobs("status", last.name), last, 60)
    said = login.jobs("status", follower.name)
    assert f"Why:         run {failing.name}, which it waited for, failed.\n" in said, said
    said = login.jobs("status", last.name)
    assert f"run {follower.name}, which it waited for, was cancelled: run {failing.name}, which" in said, said
    assert info(follower)["state"] == info(last)["state"] == "cancelled" and not info(follower).get(
        "attempts"
    )
