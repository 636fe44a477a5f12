"""Verdicts of real ranks, with a shorter minimal length of a run.

What this machine can't have is in test_verdicts.py: GPUs, a node of many CPUs. Slow and hung ranks: engine/tests/slurm/test_watch.py.
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.monitor.test_efficiency import HOOKS, LATE, SLEEP_S
from train_anywhere import features
from train_anywhere.config.checks.strategy_table import AUTO_STRATEGIES
from train_anywhere.monitor import verdicts as rules
from train_anywhere.monitor.run_facts import read_facts
from train_anywhere.runs.folder import open_run
from train_anywhere.testing.plugin import FRAMEWORKS

Train = Callable[..., "subprocess.CompletedProcess[str]"]

SMALL = ("model=mlp", "trainer.max_epochs=3", "trainer.log_every_n_steps=5", "trainer.accelerator=cpu")

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


def said(results: Path) -> list[str]:
    return features.verdicts(read_facts(open_run(results / "latest")))


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
    (sentence,) = [one for one in said(tmp_path) if re.match(expected, one)]
    assert sentence in done.stdout or case != "nan"  # at the end of the log too
