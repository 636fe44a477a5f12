"""Every strategy with every launch method on two nodes with two devices each."""

import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.tests.slurm.login import Login, log, wait_for
from tools.testbed.testbed_cluster import Testbed
from tools.testing.frameworks import PAGES
from tools.testing.weights import final_weights, fingerprints, info, largest_difference
from train_anywhere.config.checks.strategy_table import SUPPORTED
from train_anywhere.distributed.packages import horovod_problem
from train_anywhere.files import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.horovod, pytest.mark.needs_root]

SAME = (
    "model=mlp",  # no batch normalisation: each rank has its own batch statistics
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
"""One epoch of the digits, 13 steps, whose result must not depend on the number of ranks."""

DROP_IN = {
    "lightning": ("task._target_=lightning_strangers.Plain", "data._target_=lightning_strangers.rows"),
    "keras": ("task._target_=keras_strangers.OwnStep", "data._target_=keras_strangers.open_rows"),
}
STRANGERS = (
    "data.batch_size=16",
    "optimizer=sgd",
    "optimizer.lr=0.05",
    "schedule=constant",
    "trainer.max_epochs=2",
    *SAME[-4:],
)
"""A module with steps, metrics and data, independent of this project: 12 steps."""

CELLS = [
    (framework, strategy, launch)
    for framework, cells in SUPPORTED.items()
    for strategy, cell in cells.items()
    if strategy != "single"
    for launch in cell.launch
]
COVERING = [
    ("lightning", "ddp", "torchrun"),
    ("lightning", "fsdp", "srun"),
    ("lightning", "horovod", "horovodrun"),
    ("keras", "multiworker_mirrored", "srun"),
    ("keras", "horovod", "mpirun"),
]
"""Each strategy of several nodes and each launch method at least once."""

AT_ONCE = 2
"""Jobs that run at the same time."""


@pytest.fixture(autouse=True)
def _horovod(require: Callable[[object, str], None]) -> None:
    for framework in ("torch", "tensorflow"):
        problem = horovod_problem(framework, mpi=True)
        require(problem is None, str(problem))


Words = dict[str, tuple[str, ...]]
NATIVE: Words = dict.fromkeys(SUPPORTED, SAME)
STRANGE: Words = {framework: (*DROP_IN[framework], *STRANGERS) for framework in SUPPORTED}


def test_the_covering_choice_of_lightning_and_keras_has_all_strategies_and_launch_methods() -> None:
    several = {(f, s) for f, s, _ in CELLS if SUPPORTED[f][s].several_nodes}
    assert {(f, s) for f, s, _ in COVERING} == several
    assert {launch for _, _, launch in COVERING} == {launch for _, _, launch in CELLS}


choices = pytest.mark.parametrize(
    "chosen", [COVERING, pytest.param(CELLS, marks=pytest.mark.long)], ids=["covering", "all"]
)


@choices
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "what", "metric"),
    [(NATIVE, "digits, 13 steps", "test/acc"), (STRANGE, "drop-in, 12 steps", "loss")],
)
def test_matrix(
    login: Login,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    chosen: list[tuple[str, str, str]],
    words: Words,
    what: str,
    metric: str,
) -> None:
    """All ranks have the same weights, those of one process to float32 rounding: of the bundled tasks, and of any module."""
    brought = login.folder / "brought"  # in the environment, as an installed package is
    brought.mkdir()
    for framework in SUPPORTED:
        source = ROOT / "engine" / "tests" / "training" / framework / "strangers.py"
        shutil.copy(source, brought / f"{framework}_strangers.py")
    monkeypatch.setenv("PYTHONPATH", str(brought))
    more = f"cluster.setup=['export PYTHONPATH={brought}']"
    alone = {}
    for framework in SUPPORTED:
        login.train(*words[framework], f"framework={framework}", "strategy=single")
        alone[framework] = final_weights((login.results / "latest").resolve())

    def result(cell: tuple[str, str, str]) -> Path:
        framework, strategy, launch = cell
        way = (f"framework={framework}", f"strategy={strategy}", f"launch={launch}")
        size = (f"trainer.nodes={nodes(cell)}", f"trainer.devices={devices(cell, chosen)}")
        return login.result("cluster=slurm", *words[framework], *way, *size, more)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = dict(zip(chosen, pool.map(result, chosen), strict=True))
    differences = {cell: largest_difference(final_weights(run), alone[cell[0]]) for cell, run in runs.items()}
    with capsys.disabled():
        print(f"\n\n{what}; one process with the same batch is the measure\n{'':-<93}")
        print(
            f"framework  strategy              ranks  launch      largest difference  weights on ranks  {metric}"
        )
        for cell, run in runs.items():
            framework, strategy, launch = cell
            shards = f"in {2 * devices(cell, chosen)} shards"
            ranks = shards if strategy == "fsdp" else f"{len(fingerprints(log(run)))} version"
            print(
                f"{framework:<11}{strategy:<22}{nodes(cell)} x {devices(cell, chosen)}  {launch:<12}{differences[cell]:<20.1e}{ranks:<18}"
                f"{shown(run, metric):.4f}"
            )
    for cell, run in runs.items():
        assert differences[cell] < 2e-6, cell
        assert len(fingerprints(log(run))) == (0 if cell[1] == "fsdp" else 1), log(run)
        assert len(set(re.findall(r"on node \d+ \((\S+)\), started by", log(run)))) == nodes(cell)


def shown(run: Path, metric: str) -> float:
    """The metric of the test."""
    return next(v for k, v in info(run)["metrics"].items() if "test" in k and k.endswith(metric))


def nodes(cell: tuple[str, str, str]) -> int:
    """Two, or one where the strategy is for one node."""
    framework, strategy, _ = cell
    return 2 if SUPPORTED[framework][strategy].several_nodes else 1


def devices(cell: tuple[str, str, str], chosen: list[tuple[str, str, str]]) -> int:
    """Each node has two devices. The short form covers each way to start the ranks of a node."""
    return 2 if chosen is not COVERING or cell[2] in ("torchrun", "horovodrun") else 1


NAMED = {
    "srun": ("SLURM_PROCID", r"error: node2: task {}: Killed"),
    "torchrun": ("RANK", r"\nrank {} ended with signal SIGKILL; .* Details: .*-launcher-node2.txt"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", r"process rank {} with PID \d+ on node node2 exited on signal 9"),
    "horovodrun": ("HOROVOD_RANK", r"\[{}\]<stderr>:srun: error: node2: task 0: Killed"),
}
"""Variable that holds a rank's number, and how the log names one that was killed."""


@pytest.mark.parametrize(
    ("framework", "strategy", "launch"),
    [
        ("keras", "horovod", "srun"),
        *(
            pytest.param(*cell, marks=pytest.mark.slow)
            for cell in (
                ("lightning", "ddp", "srun"),
                ("lightning", "ddp", "torchrun"),
                ("lightning", "fsdp", "mpirun"),
                ("lightning", "horovod", "mpirun"),
                ("lightning", "horovod", "horovodrun"),
                ("keras", "multiworker_mirrored", "srun"),
            )
        ),
    ],
)
@pytest.mark.slow
def test_a_rank_killed_in_the_middle_ends_the_job(
    login: Login, framework: str, strategy: str, launch: str
) -> None:
    """The others exit within a minute with a message, and the job and the run are FAILED."""
    words = (f"framework={framework}", f"strategy={strategy}", f"launch={launch}")
    size = ("trainer.nodes=2", "trainer.devices=2", "trainer.max_epochs=100000")
    job, run = login.submit("cluster=slurm", *SAME, *words, *size)
    wait_for(lambda: "epoch 2/" in log(run), run, 120)
    variable, message = NAMED[launch]
    rank = kill_rank(login.testbed, "node2", variable)
    assert login.testbed.wait_job(job, 60) == "FAILED", log(run)
    assert re.search(message.format(rank), log(run)), log(run)
    assert info(run)["state"] == "failed"
    assert not PAGES.search(log(run)), log(run)
    kept = re.findall(r" Details: (.*)", log(run))
    assert all("Traceback" in Path(file).read_text() for file in kept), log(run)
    if (strategy, launch) == ("horovod", "srun"):
        assert re.search(r"error: rank \d of 4 stops: another rank exited", log(run)), log(run)


BROUGHT = """
from {base} import Callback
from train_anywhere.distributed.discover import discover

class Trouble(Callback):
    def on_train_batch_end(self, *arguments, **more):
        if discover().rank == 3:
            raise LookupError("nothing in row 42")
"""
BASES = {"lightning": "lightning.pytorch", "keras": "keras.callbacks"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "strategy", "launch"),
    [
        ("lightning", "ddp", "srun"),
        ("lightning", "ddp", "torchrun"),
        ("lightning", "horovod", "mpirun"),
        ("lightning", "horovod", "horovodrun"),
        ("keras", "multiworker_mirrored", "srun"),
    ],
)
def test_the_traceback_of_an_error_is_in_the_log_once(
    login: Login, monkeypatch: pytest.MonkeyPatch, framework: str, strategy: str, launch: str
) -> None:
    """The cause is the failed rank's. Other ranks and the launcher print messages."""
    monkeypatch.setenv("PYTHONPATH", str(login.folder))
    (login.folder / "brought.py").write_text(BROUGHT.format(base=BASES[framework]))
    words = (f"framework={framework}", f"strategy={strategy}", f"launch={launch}")
    size = ("trainer.nodes=2", "trainer.devices=2", "trainer.max_epochs=100000")
    what = (
        "callbacks.trouble._target_=brought.Trouble",
        f"cluster.setup=['export PYTHONPATH={login.folder}']",
    )
    job, run = login.submit("cluster=slurm", *SAME, *words, *size, *what)
    assert login.testbed.wait_job(job, 120) == "FAILED", log(run)
    assert log(run).count("Traceback") == 1 and "LookupError: nothing in row 42" in log(run), log(run)
    assert not re.search("ChildFailedError|c10d|frame #", log(run)), log(run)
    kept = re.findall(r" Details: (.*)", log(run))
    assert all("Traceback" in Path(file).read_text() for file in kept), log(run)


def kill_rank(testbed: Testbed, node: str, variable: str) -> str:
    """Kill the youngest rank of a node, which is not the launcher. Return its number."""
    process = testbed.run(["pgrep", "-f", r"train\.py --run"], node=node).stdout.split()[-1]
    found = testbed.run(["grep", "-azo", f"^{variable}=[0-9]*", f"/proc/{process}/environ"], node=node).stdout
    testbed.run(["kill", "-KILL", process], node=node)
    return found.strip("\0").rpartition("=")[2]
