"""Several members of a sweep in one job of a real Slurm, and on this machine."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm.login import SMALL, Login, log, wait_for
from tools.testing.processes import run_python
from tools.testing.weights import info

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
here, slow, text = Path(sys.argv[1]), *sys.argv[2:]
names = ("TRAIN_SHARE", "CUDA_VISIBLE_DEVICES", "MASTER_PORT")
print("seen", json.dumps([text, *(os.environ.get(name) for name in names)]), flush=True)
if slow == "6" and not (here / "mended").exists():
    os.kill(os.getpid(), signal.SIGKILL)
while slow != "6" and not (here / "go").exists():
    time.sleep(0.1)
"""
TEXT = "a b, 'c' \"d\""
MEMBERS = ("-m", f"args.n={','.join(map(str, range(8)))}", "args.text=" + r""" 'a b, \'c\' "d"' """.strip())


@pytest.fixture
def program(shared_dir: Path) -> tuple[str, ...]:
    (shared_dir / "program.py").write_text(PROGRAM)
    return ("--", str(shared_dir / "program.py"), str(shared_dir), "{args.n}", "{args.text}")


def seen(run: Path, text: str) -> list[str]:
    return [*json.loads(re.findall(r"seen (.*)$", text, re.M)[-1])]


@pytest.mark.slurm
@pytest.mark.needs_root
def test_four_members_share_a_gpu_and_one_is_killed(login: Login, program: tuple[str, ...]) -> None:
    """Each has its log, CPUs, port and GPU; one that is killed ends no other one and is resubmitted alone."""
    done = login.command(
        "run",
        "cluster=slurm",
        "cluster.members_per_gpu=4",
        *MEMBERS,
        f"paths.results={login.results}",
        *program,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = sorted(p.parent for p in login.results.glob("*/*/jobs.txt"))
    [job] = re.findall(r"Submitted job (\d+)", done.stdout)
    assert [p.joinpath("jobs.txt").read_text().split() for p in runs] == [
        [f"{job}_{n // 4 * 4}"] for n in range(8)
    ]
    wait_for(lambda: info(runs[6])["state"] == "failed", runs[6], 120)
    wait_for(lambda: all("seen" in log(run) for run in runs), runs[0], 60)
    listed = login.jobs("list")
    assert listed.count("running") == 7 and listed.count("failed") == 1, listed
    refused = login.command("jobs", "cancel", runs[1].name, "--results", str(login.results))
    assert refused.returncode == 2 and "shares job" in refused.stderr and "save --stop" in refused.stderr
    (login.folder / "mended").touch()
    assert login.jobs("resubmit", "--failed", runs[0].name[:-2]).count(runs[0].name[:-2]) == 1
    wait_for(lambda: info(runs[6])["state"] == "completed", runs[6], 120)
    (login.folder / "go").touch()
    for run in runs:
        wait_for(lambda run=run: info(run)["state"] == "completed", run, 60)
    found = [seen(run, log(run)) for run in runs]
    assert [one[:2] for one in found] == [[TEXT, f"{n % 4}/4/4"] for n in range(8)]
    assert {one[2] for one in found[:4]} == {found[0][2]} and "," not in found[0][2]
    assert len({one[3] for one in found[:4]}) == 4
    assert [info(run).get("restarts", 0) for run in runs] == [0] * 6 + [1, 0]
    assert "Members of this job" in log(runs[0]) and "Members of this job" not in log(runs[5])


@pytest.mark.slurm
@pytest.mark.needs_root
@pytest.mark.parametrize("event", ["a signal", "a killed supervisor"])
@pytest.mark.quick("a killed supervisor")
def test_trainings_share_a_node_and_are_requeued(login: Login, slow_steps: str, event: str) -> None:
    """A signal reaches all members, which save; the requeued job continues those that had not ended.

    If the supervisor is killed, no member outlives it.
    """
    words = ("seed=1,2,3", "cluster.members_per_node=2", "trainer.accelerator=cpu", slow_steps)
    job = login.train("-m", "cluster=slurm", *words, *SMALL, "trainer.max_epochs=2").split()[2]
    run, *_ = runs = sorted({p.parent for p in login.results.glob("*/*/jobs.txt")})
    wait_for(lambda: all((one / "metrics.csv").exists() for one in runs[:2]), run, 120)
    if event == "a signal":
        login.testbed.run(["scancel", "--signal=USR1", "--batch", f"{job}_0"])
    else:
        (node,) = info(run)["hosts"]
        oldest = ["pkill", "-KILL", "-o", "-f", f"job/__main__.py {run} "]  # those of the members are younger
        assert login.testbed.run(oldest, node=node).returncode == 0
        wait_for(lambda: "back to the queue" in log(run), run, 60)
        left = ["pgrep", "-f", f"train.py --run {str(run)[:-1]}[01]$"]
        assert login.testbed.run(left, node=node).returncode == 1
    for one in runs:
        wait_for(lambda one=one: info(one)["state"] == "completed", one, 200)
    assert [info(one).get("restarts", 0) for one in runs] == [1, 1, 0]
    assert "back to the queue" in log(run)
    if event == "a signal":
        assert "resuming at step" in log(runs[1])
    else:
        reason = "the supervisor of the job was killed (signal SIGKILL)"
        assert [info(one)["attempts"][0].get("reason") for one in runs] == [reason, reason, None]


def test_members_share_this_machine(
    train: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path, program: tuple[str, ...]
) -> None:
    (Path(program[1]).parent / "go").touch()
    words = ("-m", "cluster.members_per_node=4", *MEMBERS[1:], f"paths.results={tmp_path}", *program)
    done = run_python("src/run.py", *words)
    assert done.returncode == 137 and "1 of 8 members failed: args.n=6" in done.stderr, (
        done.stdout + done.stderr
    )
    runs = sorted(p.parent for p in tmp_path.glob("*/*/run.json"))
    assert [info(run)["state"] for run in runs].count("completed") == 7
    found = [seen(run, (run / "log.txt").read_text()) for run in runs]
    assert {one[0] for one in found} == {TEXT} and {one[1][:4] for one in found} == {
        f"{n}/4/" for n in range(4)
    }
    single = train("cluster.members_per_node=2", f"paths.results={tmp_path / 'none'}")
    assert single.returncode == 2 and "several values with -m" in single.stderr


def test_a_member_here_that_a_signal_kills_is_shown_with_it(
    train: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    """The sweep records its state."""
    words = (
        "-m",
        "cluster.members_per_node=2",
        "seed=1,2",
        "callbacks.mine._target_=os.abort",
        f"paths.results={tmp_path}",
    )
    done = train(*words)
    assert done.returncode and "2 of 2 members failed: seed=1; seed=2" in done.stderr
    ends = {line[6:] for line in done.stdout.splitlines() if line.endswith(": signal SIGABRT")}
    assert ends == {f"seed={n}: signal SIGABRT" for n in (1, 2)}, done.stdout + done.stderr
    infos = [json.loads(path.read_text()) for path in tmp_path.glob("*/*/run.json")]
    assert [(one["state"], one["attempts"][0]["reason"]) for one in infos] == [
        ("failed", "its process ended with signal SIGABRT")
    ] * 2
