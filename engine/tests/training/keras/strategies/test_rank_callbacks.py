"""Callbacks on several ranks: they resume, and the ranks stay together."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.tests.training.keras.strategies.test_tf_distribute import CONFIG, PROGRAM, new_run, start, weights
from train_anywhere.distributed.packages import horovod_problem
from train_anywhere.runs.folder import RunDir

Launch = Callable[..., object]
"""(run, out, optionally a step after which rank 0 or all ranks get a signal)"""


def with_horovodrun(run: RunDir, out: Path, *step: int) -> None:
    out.mkdir(exist_ok=True)
    program = [sys.executable, str(PROGRAM), str(run.path), str(out), *map(str, step)]
    command = ["horovodrun", "-np", "2", "--gloo", *program]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(params=["multiworker_mirrored", pytest.param("horovod", marks=pytest.mark.horovod)])
def strategy(request: pytest.FixtureRequest, require: Callable[..., None]) -> tuple[str, Launch]:
    """One of those with several ranks, and what starts two."""
    if request.param == "horovod":
        require(not horovod_problem("tensorflow"), "run `make horovod`")
        return request.param, with_horovodrun
    return request.param, lambda run, out, *step: start(run, out, 2, dict(enumerate(step)))


CALLBACKS = (
    "trainer.accumulate_grad_batches=1", "trainer.limit_train_batches=6", "trainer.max_epochs=4",
    "schedule=constant", "schedule.warmup_epochs=0", "+callbacks.a._target_=engine.tests.training.keras.strangers.Unfreezes",
    "optimizer=custom", "optimizer._target_=keras.optimizers.AdamW", "+optimizer.use_ema=true",
    "+callbacks.b._target_=engine.tests.training.keras.strangers.Halved",
    "+callbacks.c={_target_: keras.callbacks.ReduceLROnPlateau, monitor: val_loss, min_delta: 100, patience: 2}",
)  # fmt: skip


@pytest.mark.slow
def test_ranks_resume_with_their_callbacks(strategy: tuple[str, Launch], tmp_path: Path) -> None:
    """Stopped in the middle of epoch 2, they end with the weights of ranks that never stopped."""
    name, launch = strategy
    found: list[dict[str, np.ndarray]] = []
    for folder, steps in (("whole", [[]]), ("parts", [[15], []])):
        run = new_run(tmp_path / folder, *CALLBACKS, f"strategy={name}", "trainer.devices=2")
        for step in steps:
            launch(run, tmp_path / folder / "out", *step)
        found += [weights(tmp_path / folder / "out" / f"{rank}.npz") for rank in range(2)]
    for other in found[1:]:
        assert [key for key in found[0] if (found[0][key] != other[key]).any()] == []


@pytest.mark.slow
def test_ranks_that_train_different_layers_are_stopped(train, tmp_path: Path) -> None:
    """At the start of the epoch, and not after the last."""
    strategy = ("strategy=multiworker_mirrored", "trainer.devices=2", f"paths.results={tmp_path}")
    options = [o for o in CONFIG if not o.startswith("monitor.")]
    done = train(*options, *CALLBACKS, "+callbacks.a.rank=1", *strategy)
    assert done.returncode == 1
    assert "the 2 ranks train different layers (dense" in done.stderr
    assert len(list((tmp_path / "latest/checkpoints").glob("0*"))) == 1


@pytest.mark.slow
def test_a_callback_that_only_rank_0_has_keeps_the_ranks_together(train, tmp_path: Path) -> None:
    """It writes, and asks the others for nothing."""
    options = [o for o in CONFIG if not o.startswith("monitor.")]
    log = f"+callbacks.csv={{_target_: keras.callbacks.CSVLogger, filename: {tmp_path / 'keras.csv'}}}"
    ranks = ("strategy=multiworker_mirrored", "trainer.devices=2", f"paths.results={tmp_path}")
    done = train(*options, *CALLBACKS[:3], log, *ranks, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len((tmp_path / "keras.csv").read_text().splitlines()) == 5
