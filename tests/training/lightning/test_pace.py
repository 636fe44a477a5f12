"""How long a rank works by itself: with stand-ins for the events of a GPU, which is not here."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from src.training.lightning import pace
from src.training.lightning.pace import Pace


class Event:
    """A stand-in for torch.cuda.Event: the queue has come as far as `reached`."""

    made: int = 0
    reached: int = 0

    def __init__(self) -> None:
        Event.made += 1
        self.number = Event.made

    def query(self) -> bool:
        return Event.reached >= self.number

    def elapsed_time(self, last: "Event") -> float:
        assert last.query()
        return 1000.0 * (last.number - self.number)


def trainer(device: str) -> Any:
    return SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)))


def test_a_gpu_is_asked_and_never_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "event", Event)
    Event.made = Event.reached = 0
    measured = Pace(trainer("cuda:0"))
    measured.begin()
    assert measured.seconds() == 0.0  # queued
    measured.begin()
    assert measured.seconds() == 0.0  # not yet passed
    Event.reached = 2
    measured.begin()
    assert measured.seconds() == 1.0
    measured.begin()  # the next batch is measured
    measured.seconds()
    assert Event.made == 4


def test_without_a_gpu_the_clock_of_the_heartbeat_counts() -> None:
    measured = Pace(trainer("cpu"))
    measured.begin()
    assert measured.seconds() is None
