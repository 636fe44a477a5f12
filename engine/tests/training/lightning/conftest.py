"""Training in this process, stopped by real signals at a chosen place."""

import csv
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import DataSet, Splits
from train_anywhere.distributed.topology import Topology
from train_anywhere.job.rank_process import SIGNALS, RankProcess, Stop
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder
from train_anywhere.training.lightning import run as side
from train_anywhere.training.lightning import setup
from train_anywhere.training.lightning.checkpoint.rank_state import unpack


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Several tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def stop() -> Iterator[Stop]:
    """Yield the real flag behind real signals. pytest gets its handlers back."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield Stop().install()
    for number, handler in before.items():
        signal.signal(number, handler)


@dataclass
class SignalAt:
    """A data set that sends SIGTERM to this process at its n-th read, from 1."""

    inner: DataSet
    read_number: int
    reads: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Any:
        self.reads += 1
        if self.reads == self.read_number:
            signal.raise_signal(signal.SIGTERM)
        return self.inner.read(indices, epoch, train)


@dataclass
class SignalAtSample:
    """The same for a map-style data set: at the first sample of the n-th batch."""

    inner: Any
    read_number: int
    batch_size: int
    samples: int = 0

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if self.samples == (self.read_number - 1) * self.batch_size:
            signal.raise_signal(signal.SIGTERM)
        self.samples += 1
        return self.inner[index]


def with_signal(part: Any, batch_size: int, number: int) -> Any:
    """The part of the data, with SIGTERM while a batch is read."""
    return SignalAt(part, number) if hasattr(part, "read") else SignalAtSample(part, number, batch_size)


Fit = Callable[..., Outcome]
MakeConfig = Callable[..., Config]
MakeRun = Callable[..., tuple[Config, RunDir]]


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch, stop: Stop) -> Fit:
    """`fit(config, run, train=5)` trains as one rank and gets SIGTERM in batch 5 of the split."""
    open_splits = setup.open_splits

    def train(config: Config, run: RunDir, **signal_at: int) -> Outcome:
        def splits(*arguments: Any, **named: Any) -> Splits:
            found = open_splits(*arguments, **named)
            return replace(
                found,
                **{
                    p: with_signal(getattr(found, p), config.data.batch_size, n) for p, n in signal_at.items()
                },
            )

        monkeypatch.setattr(setup, "open_splits", splits)
        stop.requested = None
        train.recorder = RunRecorder(run)  # type: ignore[attr-defined]
        return side.train(config, RankProcess(run, Topology(), stop, train.recorder))  # type: ignore[attr-defined]

    return train


def final_state(run: RunDir) -> dict[str, Any]:
    """Everything in the newest checkpoint of a run that training depends on."""
    newest = (run.checkpoints / "newest").read_text().strip()
    return load_state(run.checkpoints / newest)


def load_state(folder: Path) -> dict[str, Any]:
    """The file in a checkpoint's folder, without Lightning's loop counters."""
    state: dict[str, Any] = torch.load(folder / "model.ckpt", weights_only=True)
    del state["loops"]
    return state


def assert_equal(a: Any, b: Any, path: str = "") -> None:
    """The same tree, tensors compared bit by bit."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_equal(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for number, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{path}/{number}")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), path
    else:
        assert a == b, path


UNDISTURBED: dict[tuple[str, ...], tuple[RunDir, Outcome, dict[str, Any], list[dict[str, str]]]] = {}
"""Folders and results of runs that nothing has stopped: each trains once for all the stops that it is compared with."""


def result(fit: Fit, config: Config, run: RunDir) -> tuple[Outcome, dict[str, Any], list[dict[str, str]]]:
    """Train to the end. Return the outcome, the last checkpoint, and the rows of metrics.csv."""
    outcome, state = fit(config, run), final_state(run)
    state["random"] = [{n: unpack(rank)[n] for n in ("random", "cuda")} for rank in state.pop("rank_states")]
    return outcome, state, list(csv.DictReader(run.metrics_csv.read_text().splitlines()))


def assert_resumes(
    make: Callable[..., tuple[Config, RunDir]],
    fit: Fit,
    words: tuple[str, ...],
    rows: int = 0,
    **signal_at: int,
) -> tuple[RunDir, RunDir]:
    """Compare a run that is stopped and resumed with an undisturbed one, bit by bit. Return the folders of both.

    Args:
        make: makes a run of `words`.
        rows: the number of rows at the end of metrics.csv that are compared too.
        signal_at: the split and the batch at which the signal comes.
    """
    key = (make.__module__, *words)
    if key not in UNDISTURBED:
        config, whole = make(*words)
        UNDISTURBED[key] = whole, *result(fit, config, whole)
    whole, expected, state, table = UNDISTURBED[key]
    config, run = make(*words)
    assert fit(config, run, **signal_at).state == "preempted"
    second, found, found_table = result(fit, config, run)
    assert (second.state, second.step) == (expected.state, expected.step) == ("completed", expected.step)
    assert_equal(found, state)
    metrics = [{n: v for n, v in o.metrics.items() if not n.startswith("train/")} for o in (expected, second)]
    assert metrics[0] == metrics[1]
    assert found_table[len(found_table) - rows :] == table[len(table) - rows :]
    return whole, run
