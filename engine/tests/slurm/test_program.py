"""Any program as a real Slurm job: launchers, stops and restarts, files on the node's disk."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from engine.tests.slurm.login import Login, log, wait_for
from engine.tests.slurm.programs import TWO, finished, folder_of, script, submit
from tools.testing.weights import info
from train_anywhere.files import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]


def test_a_run_is_evaluated_by_a_job(login: Login) -> None:
    """The metrics are those of the training, and the file of predictions is where it was named."""
    login.train("model=mlp", "trainer.max_epochs=1", "trainer.accelerator=cpu")
    trained, answers = (login.results / "latest").resolve(), login.folder / "answers.csv"
    words = (str(ROOT / "src/evaluate.py"), str(trained), "--split", "val", "--predict", str(answers))
    run = finished(login, "cluster=slurm", "--", *words)
    (written,) = trained.glob("evaluations/val-*.json")
    expected = {name: value for name, value in info(trained)["metrics"].items() if name.startswith("val")}
    assert json.loads(written.read_text())["metrics"] == expected
    assert str(written) in log(run) and len(answers.read_text().splitlines()) == 1 + 179


SPREAD = "spread of the weights 0"


@pytest.mark.parametrize(
    "launch, program, arguments, there",
    [
        *((launch, "horovod_minimal.py", [], "average of the ranks: 1.5") for launch in ("srun", "mpirun")),
        *((launch, "train_hvd.py", ["--epochs", "3"], SPREAD) for launch in ("srun", "horovodrun", "mpirun")),
        *((launch, "main.py", ["--ddp"], SPREAD) for launch in ("srun", "torchrun", "mpirun")),
        ("srun", "tf_workers.py", [], "workers counted: 4 of 4"),
    ],
)
@pytest.mark.quick("srun-main.py-arguments5-spread of the weights 0")
def test_programs_of_guides(
    login: Login, launch: str, program: str, arguments: list[str], there: str
) -> None:
    """Four ranks on two nodes connect with each launcher, and each line has its rank's mark."""
    run = finished(login, *TWO, f"launch={launch}", "--", script(program), *arguments)
    lines = [line for line in log(run).splitlines() if there in line]
    assert sorted(re.findall(r"\[rank (\d)\]", "\n".join(lines))) == ["1", "2", "3"], log(run)
    assert len(lines) == 4
    status = login.jobs("status", run.name)
    assert "completed" in status and "evaluate.py" not in status


SAVES = """
import os, sys, time
from collections.abc import Callable
from pathlib import Path
rank, run = int(os.environ["RANK"]), Path(os.environ["TRAIN_RUN"])
if rank:
    Path(os.environ["TRAIN_LOCAL_CHECKPOINTS"], f"{rank}.pt").write_text("saved")
    (run / f"saved-{rank}").touch()
    time.sleep(1000)
while len([*run.glob("saved-*")]) < 3:
    time.sleep(0.1)
sys.exit(3)
"""


def test_a_rank_that_fails_fails_the_job_and_files_of_the_others_are_copied(
    login: Login, request: pytest.FixtureRequest
) -> None:
    """From both nodes: srun kills the other ranks before they copy. The job is neither requeued nor complete."""
    path = Path(script(f"saves_{os.getpid()}.py"))
    request.addfinalizer(path.unlink)
    path.write_text(SAVES)
    job, run = submit(login, *TWO, "--", str(path))
    assert login.testbed.wait_job(job, 180) == "FAILED", log(run)
    assert sorted(p.name for p in (run / "checkpoints").glob("*.pt")) == ["1.pt", "2.pt", "3.pt"], log(run)
    assert f"rank 0: examples/programs/{path.name} ended with exit code 3." in log(run), log(run)
    assert info(run)["state"] == "failed" and "queue" not in log(run), log(run)


RUN_ONLY = {
    "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH", "PATH", "OMP_NUM_THREADS", "PWD", "OLDPWD", "SHLVL", "_", "LS_COLORS",
}  # fmt: skip
"""Variables that the batch script sets for ranks, and those of a shell."""


def plain(environ: dict[str, str]) -> dict[str, str]:
    """The variables that neither Slurm nor the batch script nor this project has set."""
    ours = ("SLURM", "SRUN", "TRAIN_", "SBATCH", "PMI", "PMIX")
    return {
        name: value for name, value in environ.items() if name not in RUN_ONLY and not name.startswith(ours)
    }


@pytest.mark.parametrize("launch", ["srun", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_the_environment_is_that_of_a_plain_srun(
    login: Login, launch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables, ignored and blocked signals and umask: only the ranks' variables are added."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    own = login.folder / "plain"
    own.mkdir()
    show = shutil.copy(ROOT / "engine/tests/program/show.py", own)
    words = ("--wait", "--nodes=1", "--ntasks=1", "--gpus-per-node=1", f"--output={own}/log")
    login.testbed.run(["sbatch", *words, f"--wrap=srun env SHOW_IN={own} {sys.executable} {show}"])
    before = json.loads((own / "shown-0.json").read_text())
    run = finished(
        login, "cluster=slurm", "trainer.devices=1", f"launch={launch}", "program.processes=one", "--", show
    )
    after = json.loads((run / "shown-0.json").read_text())
    assert plain(after["environ"]) == {k: v for k, v in plain(before["environ"]).items() if k != "SHOW_IN"}
    assert after["environ"]["KERAS_BACKEND"] == "jax" and "RANK" not in after["environ"]
    assert after["environ"]["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert (after["signals"], after["umask"]) == (before["signals"], before["umask"])


LAUNCHES = """#!/bin/bash
echo "launched on $(hostname) by $0 $*: NODE_RANK=$NODE_RANK NNODES=$NNODES RANK=${RANK:-none} GPUS=$CUDA_VISIBLE_DEVICES"
"""


LAUNCHERS = {
    "accelerate launch --main-process-port=29501 train.py --lr 1": (
        r"launch --num_machines 2 --machine_rank {0} --main_process_ip \S+ --num_processes 4 --main-process-port=29501 train.py --lr 1: "
        r"NODE_RANK={0} NNODES=2 RANK=none GPUS=0,1"
    ),
    "deepspeed train.py": r"NODE_RANK={0} NNODES=2 RANK=none GPUS=0,1",
}


@pytest.mark.parametrize("words", LAUNCHERS)
@pytest.mark.quick("accelerate launch --main-process-port=29501 train.py --lr 1")
def test_a_launcher_starts_once_on_each_node(
    login: Login, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """The ranks use all GPUs of a node. accelerate gets options, and typed ones stay."""
    tools = folder_of(login, "tools")
    (tool := tools / words.split()[0]).write_text(LAUNCHES)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    run = finished(login, *TWO, "--", *words.split())
    for rank in (0, 1):
        assert len(re.findall(LAUNCHERS[words].format(rank), log(run))) == 1, log(run)


@pytest.mark.slow
def test_torchrun_on_two_nodes(login: Login) -> None:
    show = shutil.copy(Path(__file__).parents[1] / "program" / "show.py", folder_of(login, "own"))
    run = finished(login, *TWO, "--", "torchrun", str(show))
    found = [json.loads((run / f"shown-{rank}.json").read_text())["environ"] for rank in range(4)]
    assert [(f["LOCAL_RANK"], f["WORLD_SIZE"], f["GROUP_RANK"]) for f in found] == [
        ("0", "4", "0"), ("1", "4", "0"), ("0", "4", "1"), ("1", "4", "1"),
    ]  # fmt: skip


def test_a_program_from_outside_is_copied_with_its_repository(login: Login) -> None:
    """The module is a git repository's in the job's copy. Ignored files stay."""
    top = folder_of(
        login, "nano", train_py="import helper, os; print('in', os.getcwd())", helper_py="print('helped')"
    )
    (top / ".gitignore").write_text("out/\n")
    (top / "out").mkdir()
    (top / "out" / "big.bin").touch()
    for words in (["init", "-q"], ["add", "."]):
        login.testbed.run(["git", "-C", str(top), *words])
    run = finished(login, "cluster=slurm", "trainer.devices=1", "--", str(top / "train.py"))
    copy = run / "code" / "outside" / "nano"
    assert f"helped\nin {copy}\n" in log(run) and not (copy / "out").exists()
    refused = login.command(
        "run", "cluster=slurm", f"paths.results={login.results}", "--", str(top / "out" / "x.py")
    )
    assert refused.returncode == 2 and "is not a file" in refused.stderr


SWEPT = """
import os, sys
from collections.abc import Callable
from pathlib import Path
from train_anywhere.program import log
lr = float(sys.argv[sys.argv.index("--lr") + 1])
if lr == 0.3 and not Path(sys.argv[1]).exists():
    sys.exit(4)
for step in range(1, 4):
    log(step, loss=abs(lr - 0.4) / step)
"""


@pytest.mark.slow
def test_a_sweep_is_an_array(login: Login) -> None:
    """With a throttle the failed member runs again, and table and best include it."""
    top = folder_of(login, "swept", mine_py=SWEPT)
    words = (
        "-m", "cluster=slurm", "trainer.devices=1", "cluster.max_running=3", "args.lr=0.1,0.2,0.3,0.4,0.5,0.6",
    )  # fmt: skip
    done = login.command(
        "run",
        *words,
        f"paths.results={login.results}",
        "--",
        str(top / "mine.py"),
        str(top / "go"),
        "--lr",
        "{args.lr}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    job = re.search(r"Submitted job (\d+)", done.stdout)
    assert job and "an array of 6" in done.stdout
    assert login.testbed.wait_job(job[1], 240)
    runs = sorted(p.parent for p in login.results.glob("mine/*/jobs.txt"))
    assert [info(run)["state"] for run in runs] == ["completed"] * 2 + ["failed"] + ["completed"] * 3
    sweep = runs[0].name.rpartition("-")[0]
    assert "#SBATCH --array=0-5%3" in next((runs[0].parent / sweep).glob("job.sbatch")).read_text()
    (top / "go").touch()
    again = re.search(r"\d+", login.jobs("resubmit", sweep, "--failed"))
    assert again
    wait_for(lambda: info(runs[2])["state"] == "completed", runs[2], 120)
    assert "loss 0  " in login.jobs("best", sweep) and "args.lr=0.4" in login.jobs("best", sweep)
    assert "lr=0.3" in login.jobs("list")
