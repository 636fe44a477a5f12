"""Every choice of every group trains a step in each framework that it has, and resumes as if it had not been stopped.

The choices are read from configs/: a file more is one more that is tried here. Some fit only together, such as a task and its data: these
are tried by the experiment that names them.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from src.config.compose import groups
from src.config.open import CUSTOM
from src.data.digits import open_digits
from src.files import ROOT

BESIDES = {
    "data=mnist": "is tried with files of its own in tests/data",
    "data=imagefolder": "is tried with files of its own in tests/data",
    "data=text": "is read in tests/data/text, by the loaders of both frameworks",
    "experiment=resnet50_mnist": "needs MNIST's files",
    "loggers=wandb": "tests/training/tracking",
    "loggers=mlflow": "tests/training/tracking",
}
"""Choices that can't be tried alone here, and why."""

SLOW = ("resnet", "experiment=alvis", "experiment=horovod")
NEEDS = {"data=synthetic": "data.height=8 data.width=8 data.classes=10 data.length=64 data.val_length=16"}


def content(choice: str) -> dict[str, Any]:
    """The file of `group=choice`."""
    loaded = yaml.safe_load((ROOT / "configs" / f"{choice.replace('=', '/')}.yaml").read_text())
    return dict(loaded)


def named() -> set[str]:
    """Choices that an experiment with a task of its own names."""
    found: set[str] = set()
    for experiment in groups()["experiment"]:
        defaults = [d for d in content(f"experiment={experiment}").get("defaults", ()) if isinstance(d, dict)]
        choices = {
            f"{key.removeprefix('override /')}={choice}" for d in defaults for key, choice in d.items()
        }
        if any(choice.startswith("task=") for choice in choices):
            found |= choices
    return found


def fits_alone(choice: str) -> bool:
    """Whether the other groups' defaults go with it: a model that needs to know what digits do not say is for other data."""
    group = choice.partition("=")[0]
    if group == "model":
        model = content(choice)
        bases = [f"model={d}" for d in model.get("defaults", ()) if d != "_self_"]
        return (
            all(map(fits_alone, bases))
            and set(model.get("from_data", {}).values()) <= open_digits().facts.keys()
        )
    return group not in ("task", "data") or choice not in named()


def test_what_does_not_fit_alone_is_named_by_an_experiment() -> None:
    models = [m for m in groups()["model"] if m != CUSTOM and "defaults" not in content(f"model={m}")]
    assert {f"model={m}" for m in models if not fits_alone(f"model={m}")} <= named()
    assert {"task=regression", "data=friedman"} <= named()
    assert fits_alone("model=mlp") and not fits_alone("data=friedman")


def lines(slow: bool) -> list[str]:
    """Overrides, one choice each."""
    tried = ("task", "data", "model", "optimizer", "schedule", "callbacks", "loggers", "experiment")
    choices = [f"{g}={c}" for g in tried for c in groups().get(g, []) if c not in (CUSTOM, "debug")]
    fitting = [c for c in choices if c not in BESIDES and fits_alone(c)]
    wanted = [c for c in fitting if any(word in c for word in SLOW) == slow]
    return [f"{c} {NEEDS.get(c, '')}".strip() for c in wanted]


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
