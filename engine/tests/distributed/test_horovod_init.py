"""Horovod starts without MPI and horovodrun. Missing ranks are named."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from train_anywhere.distributed.horovod.initialize import explain_lost_ranks, start_horovod
from train_anywhere.distributed.packages import horovod_problem
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ProjectError, TopologyError

ROOT = Path(__file__).resolve().parents[3]
RANK = """
import os, sys
from train_anywhere.distributed.horovod.initialize import import_horovod, start_horovod
from train_anywhere.distributed.discover import discover
hvd = import_horovod("torch")
try:
    start_horovod(discover(), hvd, timeout=float(sys.argv[1]))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
import torch
total = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum, name="total").item()
local, cross = (hvd.local_rank(), hvd.local_size()), (hvd.cross_rank(), hvd.cross_size())
print(int(total), local, cross, "HOROVOD_RANK" in os.environ)
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_ranks(ranks: list[int], world_size: int, port: int, timeout: float = 60) -> list[subprocess.Popen]:
    """Start some of the ranks of a world on this machine."""
    shared = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1",
              "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT / "engine")}  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(timeout)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in ranks
    ]  # fmt: skip


@pytest.fixture
def horovod(require):
    require(not horovod_problem("torch"), "run `make horovod`")


@pytest.mark.horovod
def test_ranks_meet_and_leave_no_variables_behind(horovod):
    ranks = start_ranks([0, 1, 2], 3, free_port())
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], outputs
    assert [out for out, _ in outputs] == [f"6 ({rank}, 3) (0, 1) False\n" for rank in range(3)]


@pytest.mark.slow
@pytest.mark.horovod
def test_rank_that_never_starts_is_named(horovod):
    ranks = start_ranks([0, 1], 4, free_port(), timeout=6)
    first, second = (rank.communicate(timeout=60)[1] for rank in ranks)
    assert "TopologyError: ranks 2, 3 (of 4) did not start within 6 s." in first
    assert "TopologyError: rank 1 stops: rank 0 at 127.0.0.1" in second


@pytest.mark.horovod
@pytest.mark.slow
def test_rank_without_rank_0_ends_in_time(horovod):
    (rank,) = start_ranks([1], 2, free_port(), timeout=2)
    assert "did not start in time or is unreachable" in rank.communicate(timeout=60)[1]


@pytest.mark.horovod
def test_taken_port_says_what_to_set(horovod):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        (rank,) = start_ranks([0], 2, other.getsockname()[1])
        assert "is taken (Address already in use): export MASTER_PORT" in rank.communicate(timeout=60)[1]


def stand_in(rank: int = 0, size: int = 1, mpi: bool = True) -> SimpleNamespace:
    """A stand-in with the functions of Horovod that `start_horovod` uses."""
    return SimpleNamespace(
        init=lambda: None,
        is_initialized=lambda: False,
        mpi_built=lambda: mpi,
        rank=lambda: rank,
        size=lambda: size,
    )


def test_mpirun_with_a_build_without_mpi_is_refused():
    with pytest.raises(TopologyError, match="built without MPI"):
        start_horovod(Topology(world_size=2, local_world_size=2, launched_by="mpirun"), stand_in(mpi=False))


def test_ranks_that_horovod_counts_differently_are_refused():
    """Each rank would otherwise train the whole data set independently."""
    with pytest.raises(TopologyError, match="rank 1 of 2, but in Horovod it is rank 0 of 1"):
        start_horovod(Topology(1, 1, 0, 2, 2, launched_by="mpirun"), stand_in(rank=0, size=1))


@pytest.mark.parametrize(
    "told",
    [
        "File 'x', line 1, in grouped_allreduce\n\nHorovod has been shut down. This was ...",
        "[/x/compatible17_gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.77.0.2]:14499",
    ],
)
def test_lost_rank_is_one_sentence(told):
    """TensorFlow hides Horovod's error in a longer one of another class. Other errors stay."""
    topology = Topology(rank=1, world_size=4, launched_by="srun")
    message = r"rank 1 of 4 stops: .* see the messages of srun and of Horovod"
    with pytest.raises(ProjectError, match=message), explain_lost_ranks(topology):
        raise RuntimeError(told)
    with pytest.raises(RuntimeError, match="Mismatched"), explain_lost_ranks(topology):
        raise RuntimeError("Mismatched allgather tensor shapes")
