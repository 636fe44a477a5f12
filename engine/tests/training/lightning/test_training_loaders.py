"""Where the loaders of a user continue, and what user code sees of them."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from train_anywhere.data.torch.loader import EpochSampler
from train_anywhere.job.rank_process import Stop
from train_anywhere.training.lightning.dropin.user_data import read_batches, wrap
from train_anywhere.training.lightning.strategies.choose import OneDevice
from train_anywhere.training.lightning.strategies.hooks import RESTORED, RUNS, SharedBatches, shares_rows

from .conftest import Fit, MakeRun
from .loader_strangers import ROWS, Keeps, Rows

HERE = "engine.tests.training.lightning.loader_strangers"


@pytest.fixture
def rows_of(make_run: MakeRun, fit: Fit) -> Callable[..., list[Any]]:
    """`rows_of("loader", 0, 12)`: the rows of each step of a run that is stopped at row 12, and of its second part."""

    def train(kind: str, *stops: int) -> list[Any]:
        words = [f"task._target_={HERE}.Keeps", f"data._target_={HERE}.drawing", f"data.kind={kind}"]
        short = ["trainer.max_epochs=3", "monitor.progress=none", "trainer.accelerator=cpu"]
        config, run = make_run(*words, *short)
        Keeps.seen.clear()
        for stop in stops:
            Rows.reads, Rows.stop_at = 0, stop
            fit(config, run)
        return [*Keeps.seen]

    return train


@pytest.mark.parametrize("kind", ["loader", "sampler", "cycled"])
@pytest.mark.parametrize("place", ["in an epoch", "in the second half", "at its end"])
@pytest.mark.quick("at its end-loader", "in the second half-cycled")
def test_a_generator_of_the_user_continues(kind: str, place: str, rows_of: Any) -> None:
    """At an epoch's end the next epoch starts from the generator's state, which no position of this epoch has."""
    each = ROWS * (2 if kind == "cycled" else 1)
    stop = each + {"in an epoch": 2, "in the second half": each // 2 + 4, "at its end": each}[place]
    expected = rows_of(kind, 0)
    assert rows_of(kind, stop, 0) == expected and len(expected) == 3 * ROWS // 3


def test_a_loader_that_keeps_its_position_reads_no_batch_again(rows_of: Any) -> None:
    expected = rows_of("stateful", 0)
    assert rows_of("stateful", ROWS + 5, 0) == expected
    assert Rows.reads == 3 * ROWS - (ROWS + 6)  # two batches of the second epoch were trained


def test_the_handlers_of_the_run_stay(rows_of: Any) -> None:
    rows_of("loader", 0)
    assert all(isinstance(handler.__self__, Stop) for handler in Keeps.handlers)


def test_user_code_sees_its_loader(rows_of: Any) -> None:
    rows_of("loader", 0)
    loader = Keeps.loaders[-1]
    assert isinstance(loader, DataLoader) and type(loader).__name__ == "DataLoader"
    assert (loader.batch_size, len(loader), len(loader.dataset)) == (3, ROWS // 3, ROWS)
    assert len([*iter(loader)]) == ROWS // 3


def test_a_batch_list_has_no_length_of_its_own() -> None:
    stream = wrap(batches := iter([1, 2]), lambda: read_batches(batches))
    assert not hasattr(type(stream), "__len__") and [*stream] == [1, 2]


@pytest.mark.parametrize("count", [4, 5, 7, 12])
def test_an_evaluation_shares_the_rows_of_lightnings_sampler(count: int) -> None:
    read = list[list[int]]()
    for rank in range(2):
        sampler: Any = DistributedSampler(range(count), num_replicas=2, rank=rank, shuffle=False)  # type: ignore[arg-type]
        loader = DataLoader(range(count), batch_size=2, sampler=sampler)  # type: ignore[arg-type]
        assert shares_rows(loader, 2) and not shares_rows(loader, 3)
        batches = [*SharedBatches(loader, rank)]
        read.append([row for batch in batches for row in batch])
        assert sampler.num_replicas == 2
    assert sorted([*read[0], *read[1]]) == [*range(count)]


def test_lightning_leaves_the_order_of_rows_by_index() -> None:
    assert isinstance(EpochSampler(3), DistributedSampler) and isinstance(EpochSampler(3), SequentialSampler)


def test_signals_wait_while_lightning_sets_its_handlers() -> None:
    received, strategy = list[int](), OneDevice(torch.device("cpu"))
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        strategy.barrier(RESTORED)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.raise_signal(signal.SIGTERM)
        assert not received
        strategy.barrier(RUNS)
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
