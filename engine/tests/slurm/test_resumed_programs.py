"""Any program that is killed or stopped as a real Slurm job, requeued, and goes on."""

import json
import os
import re
from pathlib import Path

import pytest

from engine.tests.slurm.login import Login, log, wait_for
from engine.tests.slurm.programs import LIGHTNING, TWO, folder_of, script, submit
from tools.testing.weights import info
from train_anywhere.runs.folder import ATTEMPTS

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]


def test_a_program_is_killed_requeued_and_goes_on(login: Login) -> None:
    """It handles no signal. Its checkpoints go to the node's disk and are copied at the end."""
    words = ("--epochs", "60", "--seconds", "0.1")
    job, run = submit(login, "cluster=slurm", "trainer.devices=1", "--", script("resumable.py"), *words)
    wait_for(lambda: "epoch 20/60" in log(run), run, 90)
    assert "running" in login.jobs("status", job)
    login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
    wait_for(lambda: "back to the queue" in log(run), run, 60)
    assert login.testbed.wait_job(job, 200) == "COMPLETED", log(run)
    started = [int(n) for n in re.findall(r"starting at epoch (\d+)", log(run))]
    assert started[0] == 0 and len(started) == 2 and started[1] >= 20, log(run)
    assert json.loads((run / "checkpoints" / "newest.json").read_text()) == {"epoch": 60}
    assert info(run)["state"] == "completed" and info(run)["restarts"] == 1
    assert "completed" in login.jobs("status", job)


COUNTS = """
import os, signal, sys, time
from collections.abc import Callable
from pathlib import Path
name, got = f"signals-{os.environ['RANK']}", []
if Path(os.environ["TRAIN_PERSISTENT_CHECKPOINTS"], name).exists():
    sys.exit(0)
signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
print("ready", flush=True)
while not got:
    time.sleep(0.1)
time.sleep(3)
Path(os.environ["TRAIN_LOCAL_CHECKPOINTS"], name).write_text(str(len(got)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["srun", "torchrun", "mpirun"])
def test_each_rank_gets_one_signal(login: Login, launch: str, request: pytest.FixtureRequest) -> None:
    path = Path(script(f"counts_{os.getpid()}.py"))
    request.addfinalizer(path.unlink)
    path.write_text(COUNTS)
    job, run = submit(login, *TWO, f"launch={launch}", "--", str(path))
    wait_for(lambda: log(run).count("ready") == 4, run, 120)
    login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
    assert login.testbed.wait_job(job, 240) == "COMPLETED", log(run)
    assert [(run / "checkpoints" / f"signals-{rank}").read_text() for rank in range(4)] == ["1"] * 4, log(run)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.horovod
def test_two_nodes_are_stopped_and_go_on(login: Login) -> None:
    """All ranks exit after the signal. The job is requeued once unless cancelled."""
    for launch in ("srun", "torchrun", "mpirun", "horovodrun"):
        words = (*TWO, f"launch={launch}", "--", script("resumable.py"), "--epochs", "150")
        job, run = submit(login, *words)
        # of rank 0, whose lines horovodrun marks
        wait_for(lambda run=run: re.search(r"(^|>:)epoch 20/150", log(run), re.M), run, 90)
        login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
        wait_for(lambda run=run: "back to the queue" in log(run), run, 60)
        assert login.testbed.wait_job(job, 200) == "COMPLETED", log(run)
        assert info(run)["state"] == "completed" and info(run)["restarts"] == 1
    job, run = submit(login, *TWO, "--", script("resumable.py"), "--epochs", "1000")
    wait_for(lambda: "epoch 20/1000" in log(run), run, 90)
    assert f"cancelled job {job}" in login.jobs("cancel", run.name)
    wait_for(lambda: login.testbed.job_states(job) == ["CANCELLED"], run, 60)
    again = re.search(r"\d+", login.jobs("resubmit", run.name))
    assert again
    wait_for(lambda: len(re.findall(r"^starting at epoch [1-9]", log(run), re.M)) > 0, run, 120)
    login.jobs("cancel", run.name)


@pytest.mark.slow
def test_lightning_requeues_itself_once(login: Login) -> None:
    """Its own handler of USR1 requeues the job, which is not requeued a second time."""
    top = folder_of(login, "pl", mine_py=LIGHTNING)
    job, run = submit(
        login, "cluster=slurm", "trainer.devices=1", "checkpoint.local=null", "--", str(top / "mine.py")
    )
    wait_for(lambda: "step 10\n" in log(run), run, 120)
    login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
    assert login.testbed.wait_job(job, 240) == "COMPLETED", log(run)
    steps = [int(n) for n in re.findall(r"^step (\d+)", log(run), re.M)]
    assert steps[-1] == 59 and steps.count(0) == 1, log(run)
    assert info(run)["state"] == "completed" and info(run)["restarts"] == 1


GPT = """
import os, sys, time
out = dict(w.removeprefix("--").split("=", 1) for w in sys.argv[1:])
file = os.path.join(out["out_dir"], "ckpt.pt")
start = int(open(file).read()) if out.get("init_from") == "resume" else 0
print("starting at", start, out.get("init_from"), flush=True)
for i in range(start, 35):
    time.sleep(0.2)
    print(f"iter {i}: loss {3 / (i + 1):.4f}, time 3.00ms", flush=True)
    if i % 10 == 9:
        open(file, "w").write(str(i + 1))
"""


@pytest.mark.slow
def test_a_script_with_an_argument_to_resume(login: Login) -> None:
    """Like nanoGPT: killed, requeued, resumed with --init_from=resume, with one curve."""
    top = folder_of(login, "gpt", train_py=GPT)
    keys = (
        r"program.metrics=iter (?P<step>\d+): loss (?P<loss>[0-9.]+)",
        "program.resume_args=--init_from=resume",
    )
    words = ("cluster=slurm", "trainer.devices=1", f"program.folder={top}", *keys)
    job, run = submit(login, *words, "--", "train.py", "--out_dir=$TRAIN_PERSISTENT_CHECKPOINTS")
    wait_for(lambda: "iter 15:" in log(run), run, 90)
    login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
    assert login.testbed.wait_job(job, 200) == "COMPLETED", log(run)
    assert re.findall(r"starting at (\d+) (\w+)", log(run)) == [("0", "None"), ("10", "resume")], log(run)
    rows = (run / "metrics.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[0]) for row in rows] == [*range(35)]
    assert info(run)["restarts"] == 1 and info(run)["step"] == 34


@pytest.mark.slow
@pytest.mark.parametrize(
    "package, words",
    [
        ("transformers", [script("hf_trainer.py")]),
        ("accelerate", ["accelerate", "launch", script("accelerate_loop.py")]),
    ],
)
def test_hugging_face_on_two_nodes(login: Login, package: str, words: list[str]) -> None:
    """After a kill and a requeue each rank has the weights of an undisturbed run."""
    at = Path(pytest.importorskip(package).__file__).parents[1]
    setup = f"cluster.setup=['export PYTHONPATH={at} PATH={at}/bin:$PATH']"
    keys = (*TWO[:2], "trainer.devices=1", "checkpoint.every_n_seconds=1", setup)
    weights = []
    for pause in ("0", "0.5"):
        job, run = submit(login, *keys, "--", *words, "--max_steps=40", "--pause", pause)
        if pause != "0":
            rows = run / "metrics.csv"
            wait_for(lambda rows=rows: rows.exists() and rows.read_text().count("\n") > 14, run, 120)
            login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
        assert login.testbed.wait_job(job, 300) == "COMPLETED", log(run)
        assert info(run)["restarts"] == (pause != "0") and info(run)["step"] == 40
        weights += [re.findall(r"rank \d: weight ([\d.]+) after 40 steps", log(run))]
    assert len(weights[0]) == len(weights[1]) == 2 and len({*weights[0], *weights[1]}) == 1, weights
    assert len(re.findall(r"rank \d starts at step [1-9]", log(run))) == 2


WAITS = ("--epochs", "1000")


def processes(login: Login, node: str, pattern: str) -> list[str]:
    """Return the ids of the processes of a node whose command line matches."""
    return login.testbed.run(["pgrep", "-f", pattern], node=node).stdout.split()


@pytest.mark.parametrize(
    "what", ["[r]esumable.py --epochs", "^[^ ]+ -u [^ ]*[t]rain.py --run"], ids=["program", "rank"]
)
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.quick("1-program")
def test_a_killed_rank_is_named_with_the_memory_limit(login: Login, what: str, nodes: int) -> None:
    """On two nodes the last rank is killed, and srun ends the first one. A killed srun comes back."""
    words = ("cluster=slurm", f"trainer.nodes={nodes}", "trainer.devices=1")
    job, run = submit(login, *words, "--", script("resumable.py"), *WAITS)
    wait_for(lambda: log(run).count("epoch 5/1000") == nodes, run, 90)
    found = processes(login, info(run)["hosts"][-1], what)
    assert found, log(run)
    login.testbed.run(["kill", "-KILL", *found], node=info(run)["hosts"][-1])
    assert login.testbed.wait_job(job, 60) == "FAILED", log(run)
    reason = info(run)[ATTEMPTS][-1]["reason"]
    assert info(run)["state"] == "failed" and "often the memory limit" in reason, info(run)
    assert "often the memory limit" in log(run)
    assert "often the memory limit" in login.jobs("status", job)
    assert "back to the queue" not in log(run) and not re.search("checkpoint saved", log(run))
