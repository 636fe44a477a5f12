"""Horovod with Keras on real ranks: the weights of one process with the whole batch."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from train_anywhere.distributed.packages import horovod_problem

WORKER = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("horovod_worker.py"))]
BIN = str(Path(sys.executable).parent)
STARTS = {
    "horovodrun": [f"{BIN}/horovodrun", "-np", "2", "--gloo"],
    "mpirun": ["mpirun", "-np", "2", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
    "alone": [],
}
EXACT = ["plain", "clip", "accumulate", "sparse", "sparse_clip"]
CASES = [*EXACT, "batchnorm", "compressed", "fp16", "overflow", "not_averaged"]

pytestmark = pytest.mark.horovod
Result = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def start(require) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the worker under a launcher."""
    require(not horovod_problem("tensorflow"), "run `make horovod`")

    def run(name: str, *arguments: object, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        if name == "mpirun":
            require(shutil.which("mpirun"), "apt-get install openmpi-bin libopenmpi-dev, then `make horovod`")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}
        return subprocess.run(
            [*STARTS[name], *WORKER, *map(str, arguments)],
            env=environment, text=True, timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def trained(start, tmp_path_factory) -> Callable[[str, str], list[Result]]:
    """`trained("mpirun", "plain")`: the results of each rank, with one start for all its cases."""
    folders: dict[str, Path] = {}

    def results(name: str, case: str) -> list[Result]:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("horovod")
            run = start(name, folders[name], *(["plain", "clip"] if name == "mpirun" else CASES))
            assert run.returncode == 0, run.stdout[-3000:]
        ranks = range(1 if name == "alone" else 2)
        return [dict(np.load(folders[name] / f"{case}.{len(ranks)}.{rank}.npz")) for rank in ranks]

    return results


def difference(a: Result, b: Result) -> float:
    """Largest absolute difference of two results' variables."""
    return max(float(np.abs(a[name] - b[name]).max()) for name in a if name.startswith("arr_"))


@pytest.mark.slow  # in `make test`, jobs of tests/slurm do it with mpirun and horovodrun
@pytest.mark.parametrize("case", CASES[:-1])
def test_ranks_end_with_the_same_weights(trained, case):
    """They start from different ones, and see different data."""
    assert difference(*trained("horovodrun", case)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("case", EXACT)
def test_weights_are_those_of_one_process_with_the_whole_batch(trained, case):
    assert difference(trained("alone", case)[0], trained("horovodrun", case)[0]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("case", ["compressed", "fp16", "overflow"])
def test_weights_in_16_bits_are_near_to_those_of_one_process(trained, case):
    assert difference(trained("alone", case)[0], trained("horovodrun", case)[0]) < 1e-3


@pytest.mark.slow
def test_without_averaging_the_ranks_differ(trained):
    """The tests above can fail: this is what they would see."""
    first, second = trained("horovodrun", "not_averaged")
    assert difference(first, second) > 0.01
    assert difference(first, trained("alone", "plain")[0]) > 0.01


@pytest.mark.slow
def test_overflow_on_one_rank_skips_the_step_on_all(trained):
    """One of six steps is skipped, so the weights differ from those without overflow."""
    assert difference(trained("horovodrun", "overflow")[0], trained("horovodrun", "fp16")[0]) > 1e-3


@pytest.mark.slow
def test_moving_statistics_become_the_mean_of_all_ranks(trained):
    first, second = trained("horovodrun", "batchnorm")
    assert np.abs(first["before"] - second["before"]).max() > 1e-3
    after = np.concatenate([first[f"arr_{n}"].ravel() for n in (6, 7)])  # after the 6 trained variables
    np.testing.assert_allclose(after, (first["before"] + second["before"]) / 2, atol=1e-6)


@pytest.mark.slow
def test_metrics_are_of_all_ranks(trained):
    expected = trained("alone", "plain")[0]["sums"]
    for rank in trained("horovodrun", "plain"):
        np.testing.assert_allclose(rank["sums"], expected, rtol=1e-6)
    assert expected[1] == expected[3] == 72


@pytest.mark.slow
def test_a_step_sends_nothing_but_gradients(trained):
    """All dense gradients are one group. A sparse one has rows and values."""
    for name, expected in {
        "plain": ["HorovodGroupedAllreduce"],
        "accumulate": ["HorovodGroupedAllreduce"],
        "sparse": ["HorovodAllgather", "HorovodAllgather", "HorovodGroupedAllreduce"],
    }.items():
        assert [list(rank["collectives"]) for rank in trained("horovodrun", name)] == [expected] * 2


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("case", ["plain", "clip"])
def test_mpirun_gives_the_same(trained, case):
    first, second = trained("mpirun", case)
    assert difference(first, second) == 0
    assert difference(first, trained("alone", case)[0]) < 1e-6


@pytest.mark.slow
def test_dead_rank_ends_the_others_and_is_named(start, tmp_path):
    run = start("horovodrun", tmp_path, "die", timeout=60)
    assert run.returncode != 0
    assert re.search("Process name: 1\nExit code: 137", run.stdout)
