"""Runs whose state no state_dict holds end with the same bits after a stop."""

from collections.abc import Callable
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from train_anywhere.errors import CheckpointError
from train_anywhere.training.lightning.inference import open_trained_model

from .conftest import Fit, MakeRun, final_state
from .state_strangers import Net

HERE = "engine.tests.training.lightning.state_strangers"
KINDS = ("Schedule", "Around", "Waits", "Metrics", "Counted", "Order", "Workers", "Probed")
"""Plain values, buffers and layers in lists are drawn by the differential test."""


@pytest.fixture
def losses_of(make_run: MakeRun, fit: Fit) -> Callable[..., list[Any]]:
    """`losses_of("Net", 7, 0)`: the losses and weights of a run that is stopped at step 7, and of its second part."""

    def train(kind: str, *stops: int, words: tuple[str, ...] = ()) -> list[Any]:
        named = [f"task._target_={HERE}.{kind}", f"data._target_={HERE}.loader", f"data.kind={kind}"]
        short = ["trainer.max_epochs=3", "monitor.progress=none", "trainer.accelerator=cpu"]
        config, run = make_run(*named, *short, *words)
        Net.losses.clear()
        for stop in stops:
            Net.stop_at = stop
            fit(config, run)
        weights = final_state(run)["state_dict"]
        return [*Net.losses, *(value.tolist() for value in weights.values())]

    return train


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [3, 8, 12])
@pytest.mark.quick("8-Schedule", "8-Metrics", "8-Order", "3-Waits")
def test_a_resumed_run_has_the_same_bits(kind, at, losses_of, capfd) -> None:
    straight = losses_of(kind, 0)
    assert losses_of(kind, at, 0) == straight
    assert "is not in a checkpoint" not in "".join(capfd.readouterr())


def test_weights_that_a_step_adds_are_named(losses_of: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        CheckpointError, match=r"holds late.weight, late.bias, which this model does not have"
    ):
        losses_of("Lazy", 8, 0)
    said = "".join(capfd.readouterr())
    assert said.count("late.weight, late.bias: added after training had started") == 1


def test_weights_that_only_training_adds_are_left_out_of_the_model(losses_of, make_run, fit, capfd) -> None:
    words = [f"task._target_={HERE}.Probed", f"data._target_={HERE}.loader", "data.kind=Probed"]
    config, run = make_run(*words, "trainer.max_epochs=1", "trainer.accelerator=cpu")
    fit(config, run)
    newest = run.checkpoints / (run.checkpoints / "newest").read_text().strip()
    model = open_trained_model(config, newest)
    assert not hasattr(model.module, "probe")
    assert "probe.weight, probe.bias: weights that only training adds are left out." in "".join(
        capfd.readouterr()
    )


@pytest.mark.parametrize("at", [8, 10, 13])
def test_an_end_that_user_code_asked_for_survives_a_stop(at: int, losses_of: Any) -> None:
    straight = losses_of("Ends", 0, words=("trainer.min_epochs=2",))
    assert len(straight) == 12 + 2
    assert losses_of("Ends", at, 0, words=("trainer.min_epochs=2",)) == straight


def test_the_curve_of_validated_batches_continues(make_run: MakeRun, fit: Fit) -> None:
    words = [f"task._target_={HERE}.Validates", f"data._target_={HERE}.both", "data.kind=Validates"]
    config, run = make_run(*words, "trainer.max_epochs=3", "trainer.accelerator=cpu")
    Net.losses.clear()
    for stop in (8, 0):
        Net.stop_at = stop
        fit(config, run)
    events = EventAccumulator(str(run.tensorboard), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in events.Scalars("val_loss_step")] == [*range(9)]
