"""The efficiency of several ranks: by hand, and of real ranks of which one is slow. Verdicts of real ranks.

What this machine can't have is in test_verdicts.py: GPUs, a node of many CPUs. Slow and hung ranks: engine/tests/slurm/test_watch.py.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from train_anywhere import features
from train_anywhere.config.checks.strategy_table import AUTO_STRATEGIES
from train_anywhere.distributed.packages import horovod_problem
from train_anywhere.monitor import verdicts as rules
from train_anywhere.monitor.heartbeat import EVERY_S, WARM_UP, Efficiency
from train_anywhere.monitor.run_facts import read_facts
from train_anywhere.runs.attempts import step_time
from train_anywhere.runs.folder import ATTEMPTS, open_run
from train_anywhere.testing.plugin import FRAMEWORKS

Train = Callable[..., SimpleNamespace]

SLEEP_S = 0.1
"""A hundred times what a step of the small model computes, so that a busy machine changes little."""

LATE = """
import os, time
import {module} as library

class Late(library.Callback):
    def {hook}(self, *args, **kwargs):
        time.sleep({sleep} * (os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)))
"""
HOOKS = {
    "lightning": ("lightning.pytorch", "on_train_batch_start"),
    "keras": ("keras.callbacks", "on_train_batch_begin"),
}


SMALL = ("model=mlp", "trainer.max_epochs=3", "trainer.log_every_n_steps=5", "trainer.accelerator=cpu")


@pytest.mark.horovod
@pytest.mark.parametrize(
    "framework, strategy",
    [("lightning", "ddp"), ("lightning", "horovod"), ("keras", "multiworker_mirrored"), ("keras", "horovod")],
)
@pytest.mark.slow
@pytest.mark.alone
def test_one_of_two_ranks_is_late(framework, strategy, train, require, tmp_path, monkeypatch):
    """Rank 0 waits nearly the whole step for rank 1. Together they use about half of their time."""
    if strategy == "horovod":
        require(not horovod_problem(framework), "run `make horovod`")
    module, hook = HOOKS[framework]
    (tmp_path / "late.py").write_text(LATE.format(module=module, hook=hook, sleep=SLEEP_S))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = (f"framework={framework}", f"strategy={strategy}", "callbacks.late._target_=late.Late")
    done = train(*SMALL, *words, "trainer.devices=2", f"paths.results={tmp_path}")
    assert done.returncode == 0, done.stderr
    info = json.loads((tmp_path / "latest" / "run.json").read_text())
    stepping, data, efficiency = step_time(info[ATTEMPTS])
    assert efficiency is not None and 0.4 < efficiency < 0.7
    assert data < 0.2 * stepping


def test_all_ranks_count_by_their_time() -> None:
    efficiency = Efficiency()
    assert efficiency.value is None
    efficiency.add_step(2.0, 0.5)
    efficiency.add_step(2.0, 9.0)  # clocks: no more than the whole
    assert efficiency.sums == [4.0, 2.5]
    efficiency.set_sums([10.0, 2.5])
    assert efficiency.value == 0.75
    efficiency.set_sums([0.0, 0.0])
    assert efficiency.value is None


def test_measured_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("train_anywhere.monitor.heartbeat.time.monotonic", lambda: now[0])
    efficiency = Efficiency()
    assert not efficiency.due(WARM_UP - 1) and efficiency.due(WARM_UP)
    efficiency.add_step(1.0, 0.0)
    assert not efficiency.due(100)
    now[0] += EVERY_S
    assert efficiency.due(100)


def test_the_parts_of_all_attempts() -> None:
    first = {"seconds": {"step": 100.0, "data": 10.0, "others": 30.0, "checkpoint": 5.0, "start": 50.0}}
    second = {"seconds": {"step": 20.0, "data": 1.0, "others": 3.0, "checkpoint": 1.0}}
    assert step_time([first, second, {}, {"seconds": "?"}]) == (120.0, 11.0, pytest.approx(76 / 109))
    assert step_time([{"seconds": {"step": 10.0, "data": 1.0}}]) == (10.0, 1.0, None)
    assert step_time([]) == (0, 0, None)


SLOW_DATA = """
import time
from train_anywhere.data.dataset import Splits
from src.data.digits import open_digits

class Slow:
    def __init__(self, rows):
        self.rows, self.shape, self.classes = rows, rows.shape, rows.classes
    def __len__(self):
        return len(self.rows)
    def read(self, indices, epoch, train):
        time.sleep(0.1)
        return self.rows.read(indices, epoch, train)

def open_slow():
    splits = open_digits()
    return Splits(Slow(splits.train), splits.val, splits.test, splits.facts)
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "WARM_UP_S", 2.0)


RUNS: dict[str, tuple[tuple[str, ...], str]] = {
    "nan": (("optimizer=sgd", "optimizer.lr=1000000", "schedule=constant"), r"train/loss is (nan|inf) since step 5:"),
    "late data": (("data._target_=late.open_slow", "data.batch_size=96", "data.workers=0"), r"training waited [5-9]\d% .*\(now 0\)"),
    "two of three ranks wait": (("trainer.devices=3", "callbacks.late._target_=late.Late"), r"ranks waited [5-8]\d% .* each other"),
    "a checkpoint after each step": (("checkpoint.every_n_steps=1", "trainer.max_epochs=15"), "training waited .* checkpoints"),
}  # fmt: skip
"""What is typed, and the verdict."""


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", RUNS)
def test_verdicts_of_real_runs(framework: str, case: str, train: Train, tmp_path: Path) -> None:
    (words, expected), (module, hook) = RUNS[case], HOOKS[framework]
    (tmp_path / "late.py").write_text(SLOW_DATA + LATE.format(module=module, hook=hook, sleep=SLEEP_S))
    if "trainer.devices=3" in words:
        words += (f"strategy={AUTO_STRATEGIES[framework][1]}",)
    paths = (f"framework={framework}", f"paths.results={tmp_path}")
    done = train(*SMALL, *words, *paths, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == (3 if case == "nan" else 0), done.stderr
    (sentence,) = [
        one
        for one in features.describe(read_facts(open_run(tmp_path / "latest")))[0]
        if re.match(expected, one)
    ]
    assert sentence in done.stdout or case != "nan"  # at the end of the log too
