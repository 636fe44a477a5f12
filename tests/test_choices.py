"""Every choice of every group trains a step in each framework that it has, and resumes as if it had not been stopped.

The choices are read from configs/: a file more is one more that is tried here.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from src.config.compose import groups
from src.config.open import CUSTOM
from src.files import ROOT

BESIDES = {
    "data=mnist": "is tried with files of its own in tests/data",
    "data=imagefolder": "is tried with files of its own in tests/data",
    "data=friedman": "needs task=regression: experiment=regression",
    "task=regression": "needs data=friedman: experiment=regression",
    "experiment=resnet50_mnist": "needs MNIST's files",
    "loggers=wandb": "tests/training/tracking",
    "loggers=mlflow": "tests/training/tracking",
}
"""Choices that can't be tried alone here, and why."""

SLOW = ("resnet", "experiment=alvis", "experiment=horovod")
NEEDS = {"data=synthetic": "data.height=8 data.width=8 data.classes=10 data.length=64 data.val_length=16"}


def lines(slow: bool) -> list[str]:
    """Overrides, one choice each."""
    tried = ("task", "data", "model", "optimizer", "schedule", "callbacks", "loggers", "experiment")
    choices = [f"{g}={c}" for g in tried for c in groups().get(g, []) if c not in (CUSTOM, "debug")]
    wanted = [c for c in choices if c not in {*BESIDES, *defaults()} and any(w in c for w in SLOW) == slow]
    return [f"{c} {NEEDS.get(c, '')}".strip() for c in wanted] + ([] if slow else ["seed=1"])


def defaults() -> set[str]:
    """The choices that a run makes which is asked for nothing: one line tries them all."""
    named = yaml.safe_load((ROOT / "configs" / "train.yaml").read_text())["defaults"]
    return {f"{g}={c}" for entry in named if isinstance(entry, dict) for g, c in entry.items()}


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("framework", ["lightning", "keras"])
def test_every_choice_trains_and_resumes(framework: str, slow: bool, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests" / "choice.py"), framework, str(tmp_path)]
    asked = lines(slow)
    assert asked
    done = subprocess.run(command, input="\n".join(asked), capture_output=True, text=True, timeout=900)
    said = [
        json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")
    ]  # among other lines
    answers = {answer["line"]: answer for answer in said}
    assert list(answers) == asked, done.stderr
    wrong = [answer for answer in answers.values() if not (right(answer) or of_the_other_side(answer))]
    assert wrong == []
    assert any(right(answer) for answer in answers.values())


def right(answer: dict[str, object]) -> bool:
    """Stopped in the middle, and in the end the same bits."""
    states = ["completed", "preempted", "completed"]
    return answer.get("states") == states and answer["difference"] == 0 and answer["same_metrics"] is True


def of_the_other_side(answer: dict[str, object]) -> bool:
    """A choice without a target for this framework."""
    return "has no target for framework=" in str(answer.get("refused", ""))
