"""Several steps in one call: the same schedule, and the same weights bit for bit."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine.tests.training.keras.test_run import assert_same_bits, rows, run_keras
from train_anywhere.config.schema import Config
from train_anywhere.runs.folder import RunDir

SIZE = (
    "framework=keras",
    "monitor.progress=none",
    "model=mlp",
    "model.dropout=0.3",
    "trainer.max_epochs=2",
    "data.batch_size=8",
)


@pytest.mark.parametrize(("processes", "devices", "at_once"), [(1, 1, True), (1, 2, True), (2, 2, False)])
def test_one_process_stops_without_asking_others(processes: int, devices: int, at_once: bool) -> None:
    """The number of devices does not matter. Processes agree when they reduce their metrics."""
    from train_anywhere.training.keras.checkpoint import Position
    from train_anywhere.training.keras.loop.callbacks import TrainingCallback
    from train_anywhere.training.keras.strategies.base import Strategy

    callback: Any = SimpleNamespace(
        module=SimpleNamespace(strategy=Strategy(0, processes, devices)),
        position=Position(),
        stop=SimpleNamespace(requested="SIGTERM"),
        metrics=SimpleNamespace(progress=SimpleNamespace(take_profile=int, request_profile=print)),
        _requests_checkpoint=lambda: False,
    )
    TrainingCallback.check_stop_flag(callback)
    assert callback.position.preempted == at_once


def made(calls: Any, first: int, last: int) -> Iterator[int]:
    """Sizes of the calls between two steps, if nothing else ends them."""
    step = first
    while step < last:
        count = calls.next_count(step, last - step)
        yield count
        step += count


def known(seconds: float, save_every: int | None = None, each: bool = False) -> Any:
    """Once the ranks have agreed on the seconds of a step."""
    from train_anywhere.training.keras.loop.callbacks import StepsPerCall

    calls = StepsPerCall(20, save_every, each)
    calls.set_mean_seconds(seconds)
    return calls


def test_a_call_ends_where_something_is_due() -> None:
    assert list(made(known(0.001), 0, 50)) == [20, 20, 10]
    assert list(made(known(0.001), 33, 50)) == [7, 10]
    assert list(made(known(0.001, save_every=15), 0, 45)) == [15, 5, 10, 10, 5]


def test_slow_steps_are_called_one_by_one() -> None:
    assert list(made(known(0.06), 0, 3)) == [1, 1, 1]
    assert list(made(known(0.02), 0, 20)) == [5, 5, 5, 5]


def test_at_times_a_step_is_alone_to_be_measured() -> None:
    assert list(made(known(0.005), 0, 121)) == [20] * 5 + [1, 19, 1]


def test_nobody_knows_how_long_a_step_takes_at_first() -> None:
    from train_anywhere.training.keras.loop.callbacks import StepsPerCall

    calls = StepsPerCall(20, None, False)
    assert calls.next_count(0, 100) == 1
    calls.add_call(9.0, 1)  # it compiles
    assert calls.take_mean_seconds() == 0.0
    calls.add_call(0.5, 5)
    assert calls.take_mean_seconds() == 0.1 and calls.take_mean_seconds() == 0.0


def test_a_callback_of_steps_is_called_at_each() -> None:
    import keras

    from train_anywhere.training.keras.loop.callbacks import has_batch_hooks

    class OfSteps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    silent = [keras.callbacks.Callback(), keras.callbacks.LambdaCallback(on_epoch_end=print)]
    assert has_batch_hooks([OfSteps()]) and not has_batch_hooks(silent)
    assert has_batch_hooks([keras.callbacks.LambdaCallback(on_train_batch_end=print)])
    assert list(made(known(0.001, each=True), 0, 2)) == [1, 1]


@pytest.mark.parametrize("most", [8, 32])
@pytest.mark.slow
def test_the_weights_are_those_of_single_calls(
    make_run: Callable[..., tuple[Config, RunDir]], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    from train_anywhere.training.keras.loop import callbacks as steps_per_call
    from train_anywhere.training.keras.module import Module

    counts: list[int] = []
    make_steps_function = Module.make_steps_function

    def counting(self: Any, step: Any) -> Any:
        run = make_steps_function(self, step)
        return lambda iterator, count: (counts.append(int(count)), run(iterator, count))

    monkeypatch.setattr(Module, "make_steps_function", counting)
    monkeypatch.setattr(steps_per_call, "LONGEST_S", 10.0)  # however busy the machine is
    config, several = make_run(*SIZE, f"trainer.log_every_n_steps={most}")
    together = run_keras(config, several)
    assert max(counts) == most and sum(counts) == together.step
    monkeypatch.setattr(steps_per_call, "LONGEST_S", 0.0)
    counts.clear()
    config, single = make_run(*SIZE, f"trainer.log_every_n_steps={most}")
    alone = run_keras(config, single)
    assert {*counts} == {1}
    assert_same_bits(together.checkpoint, alone.checkpoint)
    assert together.metrics == alone.metrics
    assert rows(several) == rows(single)
