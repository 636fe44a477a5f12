"""The loop of overridden hooks gives Lightning's weights bit for bit and the same hooks."""

import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from lightning.pytorch.profilers import SimpleProfiler

from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.schema import Config
from train_anywhere.files import ROOT, with_engine
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning.loop import fast_loop
from train_anywhere.training.lightning.trainer import Trainer

from . import step_strangers, strangers
from .conftest import Fit, assert_equal, final_state

MakeRun = Callable[..., tuple[Config, RunDir]]
STEPS = "engine.tests.training.lightning.step_strangers"
SHORT = (
    "trainer.max_epochs=2",
    "monitor.progress=none",
    "trainer.log_every_n_steps=3",
    "trainer.accelerator=cpu",
)


NATIVE = ["model=mlp", "data=digits", "data.batch_size=96", "trainer.limit_train_batches=6"]

CASES = {
    "a task": NATIVE,
    "a task in bf16": [*NATIVE, "trainer.precision=bf16-mixed"],
    "accumulated and clipped": [
        *NATIVE,
        "trainer.accumulate_grad_batches=3",
        "trainer.gradient_clip_val=0.1",
    ],
    "hooks of a callback": [*NATIVE, f"callbacks.listening._target_={STEPS}.Listening"],
    "a closure": [
        *NATIVE,
        "optimizer._target_=torch.optim.LBFGS",
        "optimizer.lr=0.1",
        "+optimizer.max_iter=3",
    ],
    "a schedule": [*NATIVE, "schedule._target_=torch.optim.lr_scheduler.StepLR", "+schedule.step_size=4"],
}


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
@pytest.mark.quick("hooks of a callback", "a closure")
def test_bit_for_bit(words: list[str], make_run: MakeRun, fit: Fit) -> None:
    results = []
    for slow in (False, True):
        step_strangers.CALLED.clear()
        key = f"trainer.fast_step={str(not slow).lower()}"
        config, run = make_run(key, *to_hydra_overrides([*words, *SHORT]))
        outcome = fit(config, run)
        results.append((final_state(run), outcome.metrics, list(step_strangers.CALLED)))
    (fast, metrics, called), (slow_state, slow_metrics, slow_called) = results
    assert_equal(fast, slow_state)
    assert metrics == slow_metrics and called == slow_called
    assert bool(called) == ("Listening" in words[-1])


def test_a_profiler_is_given_all_its_parts(
    make_run: MakeRun, fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler = SimpleProfiler()
    original = Trainer.__init__
    monkeypatch.setattr(Trainer, "__init__", lambda self, *a, **o: original(self, *a, profiler=profiler, **o))
    fit(*make_run(*to_hydra_overrides([*NATIVE, *SHORT])))
    assert "run_training_batch" in profiler.recorded_durations


def test_hooks_are_found_on_classes_and_objects() -> None:
    plain = strangers.Plain()
    assert not fast_loop.overrides(plain, "on_train_batch_end")
    plain.on_train_batch_end = lambda *arguments: None  # type: ignore[method-assign]
    assert fast_loop.overrides(plain, "on_train_batch_end")
    assert fast_loop.overrides(step_strangers.Listening(), "on_before_backward")


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
        "import lightning.pytorch.loops.utilities as u; del u._block_parallel_sync_behavior\n"
        "from train_anywhere.errors import ConfigError\n"
        "try: import train_anywhere.training.lightning.run\n"
        "except ConfigError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=with_engine(), cwd=ROOT
    )
    assert re.fullmatch(
        r"this engine does not support lightning \S+ .*_block_parallel_sync_behavior.*\n",
        done.stdout,
    ), done.stderr
