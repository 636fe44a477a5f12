"""A Lightning without one of the private names costs one feature, and not the run."""

import re
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from train_anywhere.files.removal import print_once
from train_anywhere.training.lightning import private
from train_anywhere.training.lightning.dropin.validated_weights import overrides

from . import strangers
from .conftest import Fit, MakeRun

NAMES = (
    "_results", "_logger_connector", "_data_fetcher", "_broadcast_sigterm_tensor", "_seen_batches_per_dataloader",
)  # fmt: skip
RUN = (
    "model=mlp", "data=digits", "data.batch_size=96", "trainer.limit_train_batches=6", "trainer.max_epochs=2",
    "monitor.progress=none", "trainer.log_every_n_steps=3", "trainer.accelerator=cpu",
)  # fmt: skip


def take_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the module of private names look for another name, which Lightning does not have."""
    source = Path(str(private.__file__)).read_text()
    changed: dict[str, Any] = {"__name__": private.__name__}
    exec(re.sub(rf"(?<=\.){name}\b", f"{name}_gone", source), changed)
    for key, function in vars(private).items():
        if getattr(function, "__module__", None) == private.__name__ and not hasattr(function, "__wrapped__"):
            monkeypatch.setattr(function, "__code__", changed[key].__code__)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_needs_no_private_name(name, make_run, fit, monkeypatch, capsys) -> None:
    take_away(name, monkeypatch)
    print_once.cache_clear()
    config, run = make_run(*RUN)
    assert fit(config, run, train=4).state == "preempted"
    done = fit(config, run)
    assert (done.state, done.step) == ("completed", 12)
    assert re.search(rf"lightning \S+: .*{name}_gone", capsys.readouterr().err)


def test_all_private_names_stand_in_one_module() -> None:
    source = Path(str(private.__file__)).read_text()
    assert {*re.findall(r"(?<=\.)_[a-z]\w+", source)} == {*NAMES, "_pg_registry"}
    private.forget_groups(object())


class Listening(pl.Callback):
    def on_before_backward(self, *arguments: Any) -> None: ...


def test_hooks_are_found_on_classes_and_objects() -> None:
    plain = strangers.Plain()
    assert not overrides(plain, "on_train_batch_end")
    plain.on_train_batch_end = lambda *arguments: None  # type: ignore[method-assign]
    assert overrides(plain, "on_train_batch_end")
    assert overrides(Listening(), "on_before_backward")


def test_the_loop_s_part_of_a_checkpoint_is_lightning_s(make_run: MakeRun, fit: Fit) -> None:
    config, run = make_run(*RUN)
    fit(config, run)
    newest = run.checkpoints / (run.checkpoints / "newest").read_text().strip()
    loops = torch.load(newest / "model.ckpt", weights_only=True)["loops"]["fit_loop"]
    batches = loops["epoch_loop.batch_progress"]["total"]
    assert batches == {"ready": 12, "completed": 12, "started": 12, "processed": 12}
    steps = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]
    assert steps == {"ready": 12, "completed": 12}
