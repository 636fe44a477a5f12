"""Horovod with Lightning on real ranks: the weights of one process with the whole batch."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.distributed.packages import horovod_problem

WORKER = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("horovod_worker.py"))]
MPI = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
BIN = str(Path(sys.executable).parent)
STARTS = {
    "horovodrun --gloo": [f"{BIN}/horovodrun", "-np", "2", "--gloo"],
    "horovodrun --mpi": [f"{BIN}/horovodrun", "-np", "2", "--mpi", "--mpi-args", " ".join(MPI[:2])],
    "mpirun": ["mpirun", "-np", "2", *MPI],
    "torchrun": [f"{BIN}/torchrun", "--standalone", "--nproc-per-node", "2", "--no-python"],
    "alone": [],
}
EXACT = ["plain", "clip", "accumulate", "sparse", "two_epochs", "resume"]
CASES = [*EXACT, "batchnorm", "half_unused", "compressed", "bf16", "fp16", "overflow", "not_averaged"]
FEW = ["plain", "clip"]

pytestmark = pytest.mark.horovod
Start = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def start(require) -> Start:
    """Run the worker under a launcher."""
    require(not horovod_problem("torch"), "run `make horovod`")

    def run(name: str, *arguments: object, env: dict[str, str] | None = None, timeout: float = 300):
        if "mpi" in name:
            require(shutil.which("mpirun"), "apt-get install openmpi-bin libopenmpi-dev, then `make horovod`")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})}
        environment["PATH"] = f"{BIN}:{environment['PATH']}"
        command = [*STARTS[name], *WORKER, *map(str, arguments)]
        merged = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.run(command, env=environment, text=True, timeout=timeout, **merged)

    return run


@pytest.fixture(scope="module")
def trained(start, tmp_path_factory) -> Callable[[str, str], list[dict]]:
    """`trained("mpirun", "plain")`: the results of each rank, with one start for all its cases."""
    import torch

    folders: dict[str, Path] = {}

    def results(name: str, case: str) -> list[dict]:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("horovod")
            run = start(name, folders[name], *(CASES if name in ("alone", "horovodrun --gloo") else FEW))
            assert run.returncode == 0, run.stdout[-3000:]
        ranks = range(1 if name == "alone" else 2)
        files = [folders[name] / f"{case}.{len(ranks)}.{rank}.pt" for rank in ranks]
        return [torch.load(file) for file in files]

    return results


def difference(a: dict, b: dict) -> float:
    """Largest absolute difference of two results' weights."""
    return max(float((a["weights"][name] - b["weights"][name]).abs().max()) for name in a["weights"])


@pytest.mark.slow  # in `make test`, jobs of tests/slurm do it with mpirun and horovodrun
@pytest.mark.parametrize("case", CASES[:-1])
def test_ranks_end_with_the_same_weights(trained, case):
    """They start from different ones, and see different data."""
    first, second = trained("horovodrun --gloo", case)
    assert difference(first, second) == 0
    assert not set(first["rows"].tolist()[:6]) & set(first["rows"].tolist()[6:])


ROUNDING = dict.fromkeys(EXACT, 1e-6) | {"compressed": 1e-3, "fp16": 1e-3, "overflow": 1e-3, "bf16": 1e-2}


@pytest.mark.slow
@pytest.mark.parametrize("case", ROUNDING)
def test_weights_are_those_of_one_process_with_the_whole_batch(trained, case):
    assert difference(trained("alone", case)[0], trained("horovodrun --gloo", case)[0]) < ROUNDING[case]


@pytest.mark.slow
def test_without_averaging_the_ranks_differ(trained):
    """The tests above can fail: this is what they would see."""
    first, second = trained("horovodrun --gloo", "not_averaged")
    assert difference(first, second) > 0.01
    assert difference(first, trained("alone", "plain")[0]) > 0.01


@pytest.mark.slow
def test_overflow_on_one_rank_skips_the_step_on_all(trained):
    """One of six steps is skipped, so the weights differ from those without overflow."""
    overflow, fp16 = (trained("horovodrun --gloo", case)[0] for case in ("overflow", "fp16"))
    assert difference(overflow, fp16) > 1e-3


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("case", FEW)
@pytest.mark.parametrize("name", ["mpirun", "horovodrun --mpi", "torchrun"])
def test_other_launchers_give_the_same(trained, name, case):
    first, second = trained(name, case)
    assert difference(first, second) == 0
    assert difference(first, trained("alone", case)[0]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plain", "accumulate"])
def test_nothing_is_sent_but_one_gradient_per_parameter_and_step(trained, case):
    parameters, steps = 5, 3 if case == "accumulate" else 6
    for rank in trained("horovodrun --gloo", case):
        assert len(rank["collectives"]) == parameters * steps
        assert len(set(rank["collectives"])) == parameters


@pytest.mark.slow
def test_metrics_are_of_all_ranks(trained):
    expected = trained("alone", "plain")[0]
    for rank in trained("horovodrun --gloo", "plain"):
        assert float(rank["logged"]) == pytest.approx(float(expected["logged"]))
        assert float(rank["torchmetrics"]) == pytest.approx(float(expected["torchmetrics"]))


@pytest.mark.slow
def test_resumed_run_is_the_same_bit_for_bit(trained):
    resumed, whole = (trained("horovodrun --gloo", case)[0] for case in ("resume", "two_epochs"))
    assert difference(resumed, whole) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["horovodrun --gloo", pytest.param("mpirun", marks=[pytest.mark.mpi])])
def test_dead_rank_ends_the_others_and_is_named(start, tmp_path, name):
    run = start(name, tmp_path, "die", timeout=60)
    assert run.returncode != 0
    named = "Process name: 1\nExit code: 137" if "horovodrun" in name else "process rank 1 .* signal 9"
    assert re.search(named, run.stdout)


@pytest.mark.slow
def test_rank_that_does_not_come_is_named_by_the_stall_inspector(start, tmp_path):
    stall = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    run = start("horovodrun --gloo", tmp_path, "stall", env=stall, timeout=60)
    assert run.returncode != 0
    assert re.search(r"Missing ranks:\n.*1!: \[allreduce\.gradient\.", run.stdout)
    assert "rank 0 of 2 stops: another rank exited, is unreachable or did not respond" in run.stdout


def test_a_mean_over_ranks_has_several_names(require, monkeypatch):
    require(not horovod_problem("torch"), "run `make horovod`")
    import torch
    from torch.distributed import ReduceOp

    from train_anywhere.distributed.topology import Topology
    from train_anywhere.training.lightning.strategies import horovod

    strategy = horovod.HorovodStrategy(Topology(world_size=2, local_world_size=2), torch.device("cpu"))
    monkeypatch.setattr(horovod.hvd, "allreduce", lambda tensor, name, op: 2 * tensor)
    for mean in ("mean", "avg", ReduceOp.AVG):
        assert strategy.reduce(torch.tensor(3.0), reduce_op=mean) == 3
    assert strategy.reduce(torch.tensor(3.0), reduce_op=ReduceOp.SUM) == 6


def test_sync_batchnorm_of_torch_is_refused(require):
    require(not horovod_problem("torch"), "run `make horovod`")
    from torch import nn

    from train_anywhere.errors import ConfigError
    from train_anywhere.training.lightning.strategies.horovod import refuse_torch_sync_batchnorm

    refuse_torch_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(3)), requested=False)
    for model, asked in ((nn.Sequential(nn.SyncBatchNorm(3)), False), (nn.Linear(1, 1), True)):
        with pytest.raises(ConfigError, match=r"horovod\.torch\.SyncBatchNorm .* strategy=ddp"):
            refuse_torch_sync_batchnorm(model, asked)
