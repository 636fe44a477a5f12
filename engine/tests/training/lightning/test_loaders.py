"""Workers that load data live as long as the training that they load for."""

import os
import signal

import pytest
import torch

from tools.testing.processes import run_python, start_python
from train_anywhere.errors import STOPPED
from train_anywhere.files import ROOT
from train_anywhere.training.lightning.loaders import protect_workers

from .conftest import MakeRun

RANK = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "engine")!r}]
import torch
torch.set_num_threads(1)
from train_anywhere.launch.rank import run_rank
sys.exit(run_rank(sys.argv[1]))
"""


@pytest.mark.parametrize(
    "name", ["SIGTERM", *(pytest.param(n, marks=pytest.mark.slow) for n in ("SIGINT", "SIGUSR1"))]
)
def test_a_signal_to_all_processes_stops_politely(name: str, make_run: MakeRun) -> None:
    """Ctrl-C and Slurm reach the workers too. If they exited, no checkpoint could be saved."""
    overrides = ("model=mlp", "data.workers=2", "trainer.max_epochs=10000", "monitor.progress=plain")
    _, run = make_run(*overrides, "trainer.log_every_n_steps=1000", "checkpoint.every_n_epochs=10000")
    with start_python("-u", "-c", RANK, run.path, start_new_session=True) as process:
        assert process.stdout
        while not process.stdout.readline().startswith("epoch 3/"):
            assert process.poll() is None
        os.killpg(process.pid, signal.Signals[name])
        _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if name == "SIGINT" else STOPPED)
    said = "Ctrl-C" if name == "SIGINT" else name
    assert errors.strip().startswith(f"{said}: ") and errors.strip().count("\n") == 0
    assert run.read_info()["state"] == "preempted"
    assert (run.checkpoints / "newest").is_file()


@pytest.mark.slow
def test_workers_that_are_left_do_not_keep_the_process_from_ending() -> None:
    """An iterator may still be referenced at the end, as after a stop within an epoch."""
    program = (
        "from torch.utils.data import DataLoader\n"
        "from train_anywhere.training.lightning.loaders import protect_workers\n"
        "loader = DataLoader(range(100), num_workers=2, persistent_workers=True)\n"
        "protect_workers(loader, 0)\n"
        "batches = iter(loader)\n"
        "next(batches)\n"
    )
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


class Dispositions(torch.utils.data.Dataset[int]):
    """Rows that are 1 if this process ignores SIGTERM and its worker_init_fn has been called."""

    called = False

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return int(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN and Dispositions.called)


def note_call(worker: int) -> None:
    Dispositions.called = True


def test_workers_of_a_user_s_loader_ignore_stop_signals() -> None:
    loader = torch.utils.data.DataLoader(Dispositions(), num_workers=1, worker_init_fn=note_call)
    for one in (loader, [1, 2], loader):
        protect_workers(one, rank=0)
    assert torch.cat(list(loader)).tolist() == [1, 1, 1, 1]
