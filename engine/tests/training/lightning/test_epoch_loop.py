"""The loop over batches, and what it takes from Lightning."""

import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.schema import Config
from train_anywhere.files import ROOT, with_engine
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning.loop import epoch_loop

from . import step_strangers, strangers
from .conftest import Fit

MakeRun = Callable[..., tuple[Config, RunDir]]
STEPS = "engine.tests.training.lightning.step_strangers"
SHORT = (
    "trainer.max_epochs=2",
    "monitor.progress=none",
    "trainer.log_every_n_steps=3",
    "trainer.accelerator=cpu",
)


NATIVE = ["model=mlp", "data=digits", "data.batch_size=96", "trainer.limit_train_batches=6"]


def test_hooks_are_found_on_classes_and_objects() -> None:
    plain = strangers.Plain()
    assert not epoch_loop.overrides(plain, "on_train_batch_end")
    plain.on_train_batch_end = lambda *arguments: None  # type: ignore[method-assign]
    assert epoch_loop.overrides(plain, "on_train_batch_end")
    assert epoch_loop.overrides(step_strangers.Listening(), "on_before_backward")


def test_the_loop_s_part_of_a_checkpoint_is_lightning_s(make_run: MakeRun, fit: Fit) -> None:
    config, run = make_run(*to_hydra_overrides([*NATIVE, *SHORT]))
    fit(config, run)
    newest = run.checkpoints / (run.checkpoints / "newest").read_text().strip()
    loops = torch.load(newest / "model.ckpt", weights_only=True)["loops"]["fit_loop"]
    batches = loops["epoch_loop.batch_progress"]["total"]
    assert batches == {"ready": 12, "completed": 12, "started": 12, "processed": 12}
    assert loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"] == {
        "ready": 12,
        "completed": 12,
    }


@pytest.mark.new_process
def test_an_unknown_version_of_lightning_is_one_message() -> None:
    code = (
        "import lightning.pytorch  # Lightning's own loop has imported the name\n"
        "import lightning.pytorch.loops.fit_loop as u; del u._FitLoop\n"
        "from train_anywhere.errors import ConfigError\n"
        "try: import train_anywhere.training.lightning.run\n"
        "except ConfigError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=with_engine(), cwd=ROOT
    )
    assert re.fullmatch(
        r"this engine does not support lightning \S+ .*_FitLoop.*\n",
        done.stdout,
    ), done.stderr
