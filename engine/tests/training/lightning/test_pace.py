"""How long a rank works by itself: with stand-ins for the events of a GPU, which is not here."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from train_anywhere.training.lightning.loop import pace
from train_anywhere.training.lightning.loop.pace import Pace


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


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """What the heartbeat is told of the rank's own work."""
    calls = list[float | None]()
    monkeypatch.setattr(pace.heartbeat, "computed", calls.append)
    return calls


def test_a_gpu_is_asked_and_never_waited_for(
    said: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "event", Event)
    Event.made = Event.reached = 0
    measured = Pace(trainer("cuda:0"))
    for reached in (0, 0, 2, 2):
        Event.reached = reached
        measured.begin()
        measured.forward()
    assert said == [0.0, 0.0, 1.0, 1.0]  # queued, not yet passed, passed, the next one is queued
    assert Event.made == 4


def test_without_a_gpu_the_clock_of_the_heartbeat_counts(said: list[float | None]) -> None:
    measured = Pace(trainer("cpu"))
    measured.begin()
    measured.forward()
    measured.forward()  # a second one of the same batch
    assert said == [None]


def test_once_the_last_gradient_is_known_the_work_ends_with_it(said: list[float | None]) -> None:
    measured, weight = Pace(trainer("cpu")), torch.nn.Parameter(torch.ones(2))
    measured.follow(weight)
    measured.begin()
    measured.forward()
    assert not said
    weight.sum().backward()
    weight.sum().backward()  # a second one of the same batch
    assert said == [None]
    measured.follow(None)
    measured.begin()
    weight.sum().backward()
    assert said == [None]
