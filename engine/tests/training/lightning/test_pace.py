"""The time that a rank works itself, with stand-ins for the events of a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from train_anywhere.training.lightning.loop import clock as pace
from train_anywhere.training.lightning.loop.clock import Clock


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


def measure(device: str, heartbeat: Any) -> Any:
    """Return a clock that has started on a device."""
    clock, strategy = (
        Clock(heartbeat, lambda trainer: None),
        SimpleNamespace(root_device=torch.device(device)),
    )
    clock.on_train_start(SimpleNamespace(strategy=strategy, world_size=1), None)  # type: ignore[arg-type]
    return clock


@pytest.fixture
def heartbeat() -> Any:
    """A heartbeat whose attribute `calls` lists what it is given of the rank's own work."""
    calls = list[float | None]()
    return SimpleNamespace(calls=calls, computed=calls.append, at=lambda place: None)


def test_a_gpu_is_asked_and_never_waited_for(heartbeat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "record_event", Event)
    Event.made = Event.reached = 0
    measured = measure("cuda:0", heartbeat)
    for reached in (0, 0, 2, 2):
        Event.reached = reached
        measured.batch_over()
        measured.on_before_backward()
    assert heartbeat.calls == [0.0, 0.0, 1.0, 1.0]  # queued, not yet passed, passed, the next one is queued
    assert Event.made == 4


def test_without_a_gpu_the_clock_of_the_heartbeat_counts(heartbeat: Any) -> None:
    measured = measure("cpu", heartbeat)
    measured.batch_over()
    measured.on_before_backward()
    measured.on_before_backward()  # a second one of the same batch
    assert heartbeat.calls == [None]


def test_once_the_last_gradient_is_known_the_work_ends_with_it(heartbeat: Any) -> None:
    measured, weight = measure("cpu", heartbeat), torch.nn.Parameter(torch.ones(2))
    measured._watch(weight)
    measured.batch_over()
    measured.on_before_backward()
    assert not heartbeat.calls
    weight.sum().backward()
    weight.sum().backward()  # a second one of the same batch
    assert heartbeat.calls == [None]
    measured._watch(None)
    measured.batch_over()
    weight.sum().backward()
    assert heartbeat.calls == [None]
