"""What user code sees of the Trainer is what Lightning's Trainer alone shows in the same hook."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest

from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.schema import Config
from train_anywhere.runs.folder import RunDir

from . import visible_strangers as strangers
from .conftest import Fit

MakeRun = Callable[..., tuple[Config, RunDir]]
HERE = "engine.tests.training.lightning.visible_strangers"


@pytest.fixture
def run(make_run: MakeRun) -> Callable[..., tuple[Config, RunDir]]:
    """`run("Watching", "callbacks.a._target_=...")`: a run of a module that has its own loaders."""

    def make(module: str, *words: str) -> tuple[Config, RunDir]:
        names = [
            f"task._target_={HERE}.{module}",
            "data=module",
            "trainer.max_epochs=2",
            "monitor.progress=none",
        ]
        return make_run(*to_hydra_overrides([*names, "trainer.accelerator=cpu", *words]))

    return make


def test_attributes_of_the_trainer_are_those_of_lightning(run: Any, fit: Fit, tmp_path: Path) -> None:
    strangers.SEEN.clear()
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, callbacks=[strangers.Watcher(), strangers.Other()],
        default_root_dir=tmp_path / "theirs", enable_progress_bar=False, enable_model_summary=False,
        log_every_n_steps=1,
    )  # fmt: skip
    trainer.callbacks[-1].monitor = "val_loss"
    trainer.fit(module := strangers.Watching())
    trainer.test(module, verbose=False, ckpt_path="best")
    theirs = dict(strangers.SEEN)
    strangers.SEEN.clear()
    config, folder = run(
        "Watching", f"callbacks.a._target_={HERE}.Watcher", f"callbacks.b._target_={HERE}.Other",
        "checkpoint.monitor=val_loss", "trainer.num_sanity_val_steps=2", "trainer.log_every_n_steps=1",
    )  # fmt: skip
    fit(config, folder)
    assert theirs.keys() == strangers.SEEN.keys()
    different = {
        f"{hook}: {name}": (value, strangers.SEEN[hook][name])
        for hook, seen in theirs.items()
        for name, value in seen.items()
        if value != strangers.SEEN[hook][name]
    }
    assert different == {}
