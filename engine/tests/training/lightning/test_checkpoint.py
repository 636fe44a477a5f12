"""The cost of saving a checkpoint for the ranks."""

from typing import Any

import pytest
from lightning.pytorch.strategies import DDPStrategy

from train_anywhere.checkpoints.store import CheckpointStore


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.quick("ddp")
def test_no_rank_waits_for_the_others_after_a_checkpoint(strategy, make_run, fit, monkeypatch) -> None:
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
