"""`trainer.detect_nan=replay`: a loss of nan is computed again, and says whose fault it was."""

import json
import math
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from train_anywhere.data.order.shuffle import permutation
from train_anywhere.distributed.network.addresses import node_name
from train_anywhere.errors import NotFiniteError
from train_anywhere.features.feature import Rank, Step
from train_anywhere.features.replay import ReplayNan, bad_loss
from train_anywhere.features.replay.bad_loss import BadLoss
from train_anywhere.features.replay.recompute import Replay
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.testing.weights import final_weights, largest_difference

Train = Callable[..., "subprocess.CompletedProcess[str]"]

LENGTH, BATCH = 480, 24
SEED = 3
STEP = 33  # of 20 in each epoch: batch 13 of epoch 2, which is read after step 40
ROW = int(permutation(LENGTH, SEED, 1)[12 * BATCH + 15])  # of rank 1 of two
WORDS = (
    "task=regression",
    "model=mlp",
    "model.hidden=[8]",
    "data._target_=engine.tests.training.poisoned.open_poisoned",
    f"+data.length={LENGTH}",
    f"+data.row={ROW}",
    f"data.batch_size={BATCH}",
    f"seed={SEED}",
    "trainer.max_epochs=3",
    "trainer.detect_nan=replay",
    "checkpoint.every_n_steps=8",
    "checkpoint.keep_last=9",
    "monitor.report=false",
)


def of(run: Path) -> list[dict[str, Any]]:
    """The attempts."""
    return list(json.loads((run / "run.json").read_text())[ATTEMPTS])


def test_what_is_recorded(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert bad_loss.pending(run) is None and ReplayNan().resume_until(run) is None
    run.update(**{ATTEMPTS: [{"started": "a"}]})
    bad_loss.record(run, BadLoss("train/loss", 33, 1, 12, 40, (1,), ("node2",)))
    assert ReplayNan().resume_until(run) == 31
    run.update(**{ATTEMPTS: [*run.read_info()[ATTEMPTS], {"started": "b"}]})
    found = bad_loss.pending(run)
    assert found and found.ranks_and_hosts == "rank 1 on node2"
    bad_loss.record_verdict(run, "machine")
    assert bad_loss.pending(run) is None
    assert [found.verdict for found in bad_loss.history(run.read_info())] == ["machine"]
    run.update(**{ATTEMPTS: [{"nan": {"step": "x"}}, {"nan": 3}, {"nan": None}]})
    assert bad_loss.history(run.read_info()) == []


def test_messages(tmp_path: Path) -> None:
    """One when the loss is bad, and one when its cause is found, for `monitor.notify`."""
    run = RunDir(tmp_path)
    run.update(**{ATTEMPTS: [{"started": "a"}]})

    def observe(step: int, loss: float, good: int) -> str:
        rank = Rank(run, True, 0, 1, 1, lambda values: values, None)
        with suppress(NotFiniteError):
            Replay(rank).after_step(Step(step, 1, 20, {"train/loss": loss}, [(20, good)]))
        return str(json.loads((run.monitor / "event-nan.json").read_text())["text"])

    said = f"train/loss is nan or inf in step 33, batch 13 of epoch 2, first on rank 0 on {node_name()}"
    assert observe(40, math.nan, 12) == f"{said}; it is recomputed"
    assert "the cause is the machine" in observe(40, 0.5, 20)


@pytest.mark.parametrize(
    ("framework", "ranks"),
    [
        pytest.param("lightning", 1),
        pytest.param("lightning", 2, marks=pytest.mark.slow),
        pytest.param("keras", 1),
        pytest.param("keras", 2, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_another_result_is_the_machine_s(train: Train, tmp_path: Path, framework: str, ranks: int) -> None:
    """The run goes on by itself, and ends with the weights of a machine without a fault."""
    words = [f"framework={framework}", *WORDS, f"trainer.devices={ranks}"]
    done = train(*words, f"+data.once={tmp_path / 'read'}", f"paths.results={tmp_path / 'a'}")
    assert done.returncode == 0, done.stderr
    said = f"train/loss was nan or inf in step {STEP}, first on rank {ranks - 1} on "
    assert said in done.stderr and "the cause is the machine" in done.stderr, done.stderr
    first, second = of(tmp_path / "a" / "latest")
    assert (first["ended_by"], first["nan"]["verdict"], second["ended_by"]) == (
        "failed",
        "machine",
        "completed",
    )
    assert (first["nan"]["step"], first["nan"]["epoch"], first["nan"]["batch"]) == (STEP, 1, 12)
    assert second["from_step"] == 24
    whole = train(*words, f"+data.once={tmp_path / 'read'}", f"paths.results={tmp_path / 'b'}")
    assert whole.returncode == 0, whole.stderr
    assert largest_difference(*(final_weights(tmp_path / name / "latest") for name in "ab")) == 0


@pytest.mark.parametrize(
    "framework",
    [pytest.param("lightning"), pytest.param("keras", marks=pytest.mark.slow)],
)
def test_the_same_again_is_the_model_s_or_the_data_s(train: Train, tmp_path: Path, framework: str) -> None:
    """The batch is named and kept, and nothing begins for a third time."""
    words = [f"framework={framework}", *WORDS, "trainer.devices=2", "trainer.accumulate_grad_batches=2"]
    done = train(*words, f"paths.results={tmp_path}")
    assert done.returncode == 1, done.stderr
    assert "in step 17, batch 13 of epoch 2 again, first on rank 1 on " in done.stderr, done.stderr
    assert done.stderr.count("again, first on") == 1, "rank 0 alone says it"
    first, second = of(tmp_path / "latest")
    assert (first["nan"]["verdict"], second["nan"]["verdict"]) == ("repeated", "repeated")
    kept = np.load(tmp_path / "latest" / "debug" / "nan-epoch-2-batch-13-rank-1.npz")
    place = [*kept["rows"]].index(ROW)
    assert np.isnan(kept["targets"][place]).all() and np.isfinite(np.delete(kept["targets"], place, 0)).all()
