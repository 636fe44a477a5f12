"""Horovod on real ranks of both frameworks: the weights of one process with the whole batch."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from train_anywhere.distributed.packages import horovod_problem
from train_anywhere.testing.plugin import FRAMEWORKS

MPI = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
BIN = str(Path(sys.executable).parent)
GLOO = "horovodrun --gloo"
STARTS = {
    GLOO: [f"{BIN}/horovodrun", "-np", "2", "--gloo"],
    "horovodrun --mpi": [f"{BIN}/horovodrun", "-np", "2", "--mpi", "--mpi-args", " ".join(MPI[:2])],
    "mpirun": ["mpirun", "-np", "2", *MPI],
    "torchrun": [f"{BIN}/torchrun", "--standalone", "--nproc-per-node", "2", "--no-python"],
    "alone": [],
}
FEW = ["plain", "clip"]
EXACT = {"lightning": ["two_epochs", "resume"], "keras": ["sparse_clip"]}
HALF = {"compressed": 1e-3, "fp16": 1e-3, "overflow": 1e-3}
ROUNDING = {f: dict.fromkeys([*FEW, "accumulate", "sparse", *EXACT[f]], 1e-6) | HALF for f in FRAMEWORKS}
ROUNDING["lightning"]["bf16"] = 1e-2
EQUAL = {f: [*ROUNDING[f], "batchnorm", *["half_unused"] * (f == "lightning")] for f in FRAMEWORKS}

# in `make test-engine`, jobs of tests/slurm do it with mpirun and horovodrun
pytestmark = [pytest.mark.horovod, pytest.mark.slow]
Start = Callable[..., subprocess.CompletedProcess[str]]
Result = Mapping[str, np.ndarray]


@pytest.fixture(scope="module")
def start(require) -> Start:
    """Run the worker of a framework under a launcher."""

    def run(framework: str, name: str, *arguments: object, timeout: float = 300, **environ: str):
        require(not horovod_problem(framework), "run `make horovod`")
        if "mpi" in name:
            require(shutil.which("mpirun"), "apt-get install openmpi-bin libopenmpi-dev, then `make horovod`")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **environ}
        environment["PATH"] = f"{BIN}:{environment['PATH']}"
        worker = Path(__file__).with_name(framework) / "strategies" / "horovod_worker.py"
        command = [*STARTS[name], sys.executable, "-W", "ignore", str(worker), *map(str, arguments)]
        merged = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.run(command, env=environment, text=True, timeout=timeout, **merged)

    return run


@pytest.fixture(scope="module")
def trained(start, tmp_path_factory) -> Callable[[str, str, str], list[Result]]:
    """`trained("keras", "mpirun", "plain")`: the results of each rank, with one start for all its cases."""
    folders: dict[tuple[str, str], Path] = {}

    def results(framework: str, name: str, case: str) -> list[Result]:
        key = (framework, name)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("horovod")
            cases = [*EQUAL[framework], "not_averaged"] if name in ("alone", GLOO) else FEW
            run = start(framework, name, folders[key], *cases)
            assert run.returncode == 0, run.stdout[-3000:]
        ranks = range(1 if name == "alone" else 2)
        return [np.load(folders[key] / f"{case}.{len(ranks)}.{rank}.npz") for rank in ranks]

    return results


def difference(a: Result, b: Result) -> float:
    """Largest absolute difference of two results' weights."""
    names = [name for name in a if name.startswith("weights/")]
    return max(float(np.abs(a[name] - b[name]).max()) for name in names)


@pytest.mark.parametrize(("framework", "case"), [(f, case) for f in FRAMEWORKS for case in EQUAL[f]])
def test_ranks_end_with_the_same_weights(trained, framework, case):
    """They start from different ones, and see different data."""
    first, second = trained(framework, GLOO, case)
    assert difference(first, second) == 0
    if framework == "lightning":
        assert not set(first["rows"].tolist()[:6]) & set(first["rows"].tolist()[6:])


@pytest.mark.parametrize(("framework", "case"), [(f, case) for f in FRAMEWORKS for case in ROUNDING[f]])
def test_weights_are_those_of_one_process_with_the_whole_batch(trained, framework, case):
    alone, first = (trained(framework, name, case)[0] for name in ("alone", GLOO))
    assert difference(alone, first) < ROUNDING[framework][case]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_without_averaging_the_ranks_differ(trained, framework):
    """The tests above can fail: this is what they would see."""
    first, second = trained(framework, GLOO, "not_averaged")
    assert difference(first, second) > 0.01
    assert difference(first, trained(framework, "alone", "plain")[0]) > 0.01


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_overflow_on_one_rank_skips_the_step_on_all(trained, framework):
    """One of six steps is skipped, so the weights differ from those without overflow."""
    overflow, fp16 = (trained(framework, GLOO, case)[0] for case in ("overflow", "fp16"))
    assert difference(overflow, fp16) > 1e-3


@pytest.mark.mpi
@pytest.mark.parametrize("case", FEW)
@pytest.mark.parametrize(
    ("framework", "name"),
    [*(("lightning", name) for name in ("mpirun", "horovodrun --mpi", "torchrun")), ("keras", "mpirun")],
)
def test_other_launchers_give_the_same(trained, framework, name, case):
    first, second = trained(framework, name, case)
    assert difference(first, second) == 0
    assert difference(first, trained(framework, "alone", case)[0]) < 1e-6


@pytest.mark.parametrize("case", ["plain", "accumulate"])
def test_nothing_is_sent_but_one_gradient_per_parameter_and_step(trained, case):
    parameters, steps = 5, 3 if case == "accumulate" else 6
    for rank in trained("lightning", GLOO, case):
        assert len(rank["collectives"]) == parameters * steps
        assert len(set(rank["collectives"].tolist())) == parameters


def test_a_step_of_keras_sends_nothing_but_gradients(trained):
    """All dense gradients are one group. A sparse one has rows and values."""
    for name, expected in {
        "plain": ["HorovodGroupedAllreduce"],
        "accumulate": ["HorovodGroupedAllreduce"],
        "sparse": ["HorovodAllgather", "HorovodAllgather", "HorovodGroupedAllreduce"],
    }.items():
        assert [list(rank["collectives"]) for rank in trained("keras", GLOO, name)] == [expected] * 2


def test_metrics_are_of_all_ranks(trained):
    expected = trained("lightning", "alone", "plain")[0]
    for rank in trained("lightning", GLOO, "plain"):
        assert float(rank["logged"]) == pytest.approx(float(expected["logged"]))
        assert float(rank["torchmetrics"]) == pytest.approx(float(expected["torchmetrics"]))
    expected = trained("keras", "alone", "plain")[0]["sums"]
    for rank in trained("keras", GLOO, "plain"):
        np.testing.assert_allclose(rank["sums"], expected, rtol=1e-6)
    assert expected[1] == expected[3] == 72


def test_moving_statistics_become_the_mean_of_all_ranks(trained):
    first, second = trained("keras", GLOO, "batchnorm")
    assert np.abs(first["before"] - second["before"]).max() > 1e-3
    after = np.concatenate([first[f"weights/{n}"].ravel() for n in (6, 7)])  # after the 6 trained variables
    np.testing.assert_allclose(after, (first["before"] + second["before"]) / 2, atol=1e-6)


def test_resumed_run_is_the_same_bit_for_bit(trained):
    resumed, whole = (trained("lightning", GLOO, case)[0] for case in ("resume", "two_epochs"))
    assert difference(resumed, whole) == 0


@pytest.mark.parametrize(
    ("framework", "name"),
    [("lightning", GLOO), pytest.param("lightning", "mpirun", marks=pytest.mark.mpi), ("keras", GLOO)],
)
def test_dead_rank_ends_the_others_and_is_named(start, tmp_path, framework, name):
    run = start(framework, name, tmp_path, "die", timeout=60)
    assert run.returncode != 0
    named = "Process name: 1\nExit code: 137" if name == GLOO else "process rank 1 .* signal 9"
    assert re.search(named, run.stdout)


def test_rank_that_does_not_come_is_named_by_the_stall_inspector(start, tmp_path):
    stall = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    run = start("lightning", GLOO, tmp_path, "stall", timeout=60, **stall)
    assert run.returncode != 0
    assert re.search(r"Missing ranks:\n.*1!: \[allreduce\.gradient\.", run.stdout)
    assert "rank 0 of 2 stops: another rank exited, is unreachable or did not respond" in run.stdout
