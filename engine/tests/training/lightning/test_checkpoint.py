"""The cost of saving a checkpoint for the ranks."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.strategies import DDPStrategy

from train_anywhere.checkpoints.store import CheckpointStore
from train_anywhere.config.schema import Config
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.early_stopping import Patience
from train_anywhere.training.lightning.loop.early_stop import EarlyStop

from .conftest import Fit


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.quick("ddp")
def test_no_rank_waits_for_the_others_after_a_checkpoint(
    strategy: str, make_run: Callable[..., tuple[Config, RunDir]], fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning has a barrier there. All its other barriers are reached."""
    waited: list[str] = []

    def barrier(self: DDPStrategy, *names: Any) -> None:
        waited.extend(names)

    monkeypatch.setattr(DDPStrategy, "barrier", barrier)
    config, run = make_run(
        "model=mlp",
        f"strategy={strategy}",
        "trainer.devices=1",
        "trainer.accelerator=cpu",
        "trainer.max_epochs=2",
        "monitor.progress=none",
    )
    fit(config, run)
    assert len(CheckpointStore(run.checkpoints, "max", 9).all()) == 2
    assert waited
    assert not [name for name in waited if "checkpoint" in str(name)]


@pytest.mark.parametrize(("mode", "cost"), [("min", 0.25), ("max", -0.25)])
def test_early_stopping_keeps_its_form_in_checkpoints(
    mode: str, cost: float, make_config: Callable[..., Config]
) -> None:
    """Lower is better in any mode, and infinity stands for no validation yet."""
    trainer = make_config(f"trainer.early_stopping.mode={mode}").trainer
    for patience, written in ((Patience(0.25, 3), cost), (Patience(), math.inf)):
        before, after = (EarlyStop(trainer, Any) for _ in range(2))  # type: ignore[arg-type]
        checkpoint = dict[str, Any]()
        before.patience = patience
        before.on_save_checkpoint(Any, Any, checkpoint)  # type: ignore[arg-type]
        assert checkpoint == {"early_stop": {"best": written, "waited": patience.waited}}
        after.metrics = SimpleNamespace(plan=SimpleNamespace(steps_per_epoch=3))  # type: ignore[assignment]
        after.on_load_checkpoint(SimpleNamespace(steps_done=6), Any, checkpoint)  # type: ignore[arg-type]
        assert after.patience == patience
