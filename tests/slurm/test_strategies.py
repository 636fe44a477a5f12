"""Every strategy on two nodes with two ranks each, started by every launch method: `make matrix` prints the table."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from slurm.testbed.cluster import Testbed
from src.horovod_build import horovod_problem
from src.matrix import MATRIX
from src.rundir import ROOT
from tests.weights import final_weights, fingerprints, info, largest_difference

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.mpi,
    pytest.mark.horovod,
    pytest.mark.needs_root,
]

SAME = (
    "model=mlp",  # no batch normalisation: each rank has batch statistics of its own
    "model.hidden=[32]",
    "model.dropout=0",
    "optimizer=sgd",
    "optimizer.lr=0.3",
    "schedule=constant",
    "data.batch_size=96",
    "trainer.max_epochs=1",
    "trainer.accelerator=cpu",
    "checkpoint.local=null",
    "monitor.tensorboard=false",
    "monitor.ranks=true",
)
"""One epoch of the digits, 14 steps, whose result must not depend on the number of ranks."""

CELLS = [
    (framework, strategy, launch)
    for framework, cells in MATRIX.items()
    for strategy, cell in cells.items()
    if cell.several_nodes
    for launch in cell.launch
]
LEFT_OUT = (
    []
    if os.environ.get("MATRIX") == "all"
    else [
        ("lightning", "fsdp", "torchrun"),
        ("lightning", "fsdp", "mpirun"),
        ("lightning", "horovod", "torchrun"),
        ("keras", "multiworker_mirrored", "mpirun"),
        ("keras", "horovod", "torchrun"),
    ]
)
"""With all other tests there is no time for these: the strategy and the launch method are in other rows."""

AT_ONCE = 2
"""Jobs that run at the same time."""


class Login:
    """The command line as typed on the login node."""

    def __init__(self, testbed: Testbed, folder: Path) -> None:
        self.testbed, self.folder = testbed, folder

    def train(self, *words: str) -> Path:
        """`python src/train.py ...`; returns the run folder, which is the only one of its results."""
        results = Path(
            self.folder, "-".join(re.findall(r"(?:framework|strategy|launch)=(\w+)", " ".join(words)))
        )
        command = [sys.executable, str(ROOT / "src" / "train.py"), *SAME, *words, f"paths.results={results}"]
        environment = {**self.testbed.env(), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return (results / "latest").resolve()

    def submit(self, *words: str) -> tuple[str, Path]:
        """Job id and run folder."""
        run = self.train("cluster=slurm", *words)
        return (run / "jobs.txt").read_text().strip(), run

    def result(self, *words: str, timeout: float = 240) -> Path:
        """Submit and wait for a job that must be COMPLETED; returns the run folder."""
        job, run = self.submit(*words)
        assert self.testbed.wait_job(job, timeout) == "COMPLETED", log(run)
        return run


def log(run: Path) -> str:
    """Everything that the jobs of a run printed."""
    return "\n".join(p.read_text() for p in sorted(run.glob("slurm-*.*")))


@pytest.fixture
def login(testbed: Testbed, shared_dir: Path, require: Callable[[object, str], None]) -> Login:
    for framework in ("torch", "tensorflow"):
        problem = horovod_problem(framework, mpi=True)
        require(problem is None, str(problem))
    return Login(testbed, shared_dir)


@pytest.fixture
def single(login: Login) -> dict[str, dict[str, np.ndarray]]:
    """The weights of one process with the whole batch, by framework."""
    return {f: final_weights(login.train(f"framework={f}", "strategy=single")) for f in MATRIX}


def test_matrix(
    login: Login, single: dict[str, dict[str, np.ndarray]], capsys: pytest.CaptureFixture[str]
) -> None:
    """All ranks have the same weights, those of one process to float32 rounding."""
    size = ("trainer.nodes=2", "trainer.devices=2")
    chosen = [cell for cell in CELLS if cell not in LEFT_OUT]

    def result(cell: tuple[str, str, str]) -> Path:
        framework, strategy, launch = cell
        return login.result(f"framework={framework}", f"strategy={strategy}", f"launch={launch}", *size)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = dict(zip(chosen, pool.map(result, chosen), strict=True))
    differences = {
        cell: largest_difference(final_weights(run), single[cell[0]]) for cell, run in runs.items()
    }
    with capsys.disabled():
        print(
            f"\n\n2 nodes x 2 ranks, digits, 14 steps; one process with the same batch is the measure\n{'':-<86}"
        )
        print("framework  strategy              launch      largest difference  weights on ranks  test/acc")
        for cell, run in runs.items():
            framework, strategy, launch = cell
            ranks = "in 4 shards" if strategy == "fsdp" else f"{len(fingerprints(log(run)))} version"
            print(
                f"{framework:<11}{strategy:<22}{launch:<12}{differences[cell]:<20.1e}{ranks:<18}"
                f"{info(run)['metrics']['test/acc']:.4f}"
            )
    for cell, run in runs.items():
        assert differences[cell] < 2e-6, cell
        assert len(fingerprints(log(run))) == (0 if cell[1] == "fsdp" else 1), log(run)
        assert len(set(re.findall(r"on node \d+ \((\S+)\), started by", log(run)))) == 2


@pytest.mark.parametrize("strategy", ["ddp", "horovod"])
def test_three_ranks_on_two_nodes(login: Login, strategy: str) -> None:
    """An uneven job is COMPLETED, and all its ranks end with the same weights."""
    size = ("trainer.nodes=2", "trainer.total_devices=3")
    output = log(login.result(f"strategy={strategy}", *size))
    assert len(re.findall(r": weights ", output)) == 3
    assert len(fingerprints(output)) == 1
    assert sorted(re.findall(r"local rank \d of (\d) on node", output)) == ["1", "2", "2"]


@pytest.mark.parametrize("strategy", ["ddp", "horovod"])
def test_a_rank_killed_in_the_middle_ends_the_job(login: Login, strategy: str) -> None:
    """The others end within a minute, the log names the dead one, the job is FAILED and the run too."""
    size = ("trainer.nodes=2", "trainer.devices=2", "trainer.max_epochs=100000")
    job, run = login.submit(f"strategy={strategy}", *size)
    wait_for(lambda: "epoch 2/" in log(run), run, 120)
    ranks = login.testbed.run(["pgrep", "-f", r"train\.py --run"], node="node2").stdout.split()
    environ = Path(f"/proc/{ranks[-1]}/environ")
    rank = login.testbed.run(["grep", "-azo", r"SLURM_PROCID=[0-9]*", str(environ)], node="node2").stdout
    login.testbed.run(["kill", "-KILL", ranks[-1]], node="node2")
    assert login.testbed.wait_job(job, 60) == "FAILED", log(run)
    assert f"node2: task {rank.strip(chr(0)).rpartition('=')[2]}: Killed" in log(run)
    assert info(run)["state"] == "failed"


def wait_for(there: Callable[[], bool], run: Path, seconds: float) -> None:
    """Wait until something is true of a running job."""
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, log(run)
        time.sleep(0.2)
