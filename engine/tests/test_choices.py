"""Every choice of every group trains and resumes in each of its frameworks.

The choices are read from configs/, so a new file is tried too.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.config.command.compose import CONFIGS, list_groups
from train_anywhere.config.command.yaml_files import read_mapping
from train_anywhere.config.keys import CUSTOM, SINGLE_GROUPS
from train_anywhere.files import ROOT
from train_anywhere.testing.plugin import FRAMEWORKS

BESIDES = {
    "data=mnist": "is tried with its own files in tests/data",
    "data=imagefolder": "is tried with its own files in tests/data",
    "data=shards": "engine/tests/data/test_shards.py",
    "data=module": "engine/tests/training/lightning/test_rank_splits.py",
    "experiment=resnet50_mnist": "needs MNIST's files",
    "loggers=wandb": "engine/tests/training/tracking",
    "loggers=mlflow": "engine/tests/training/tracking",
}
"""Choices that can't be tried alone here, and why; besides those of `with_others` and `in_other_numbers`."""

SLOW = ("resnet", "experiment=alvis", "experiment=horovod")
NEEDS = {
    "data=synthetic": "data.height=8 data.width=8 data.classes=10 data.length=64 data.val_length=16",
    "experiment=gpt_text": "data.length=32 model.layers=2",
}


def with_others() -> set[str]:
    """Choices that experiments take only together with a task: the experiment tries them."""
    taken: dict[str, set[bool]] = {}
    for name in list_groups()["experiment"]:
        entries = read_mapping(CONFIGS / "experiment" / f"{name}.yaml").get("defaults", [])
        chosen = {
            key.removeprefix("override /"): choice for entry in entries for key, choice in entry.items()
        }
        for group in chosen.keys() & {"task", "data", "model"}:
            taken.setdefault(f"{group}={chosen[group]}", set()).add("task" in chosen)
    return {choice for choice, with_task in taken.items() if with_task == {True}}


def in_other_numbers() -> set[str]:
    """Choices that inherit from another of their group, such as larger models."""
    known = ((g, c, read_mapping(CONFIGS / g / f"{c}.yaml")) for g in SINGLE_GROUPS for c in list_groups()[g])
    return {
        f"{group}={choice}"
        for group, choice, tree in known
        if {e for e in tree.get("defaults") or [] if isinstance(e, str)} - {"_self_"}
    }


def lines(slow: bool) -> list[str]:
    """Overrides, one choice each."""
    tried = ("task", "data", "model", "optimizer", "schedule", "callbacks", "loggers", "experiment")
    choices = [f"{g}={c}" for g in tried for c in list_groups().get(g, []) if c not in (CUSTOM, "debug")]
    besides = {*BESIDES, *defaults(), *with_others(), *in_other_numbers()}
    wanted = [c for c in choices if c not in besides and any(word in c for word in SLOW) == slow]
    return [f"{c} {needs(c)}".strip() for c in wanted] + ([] if slow else ["seed=1"])


def join(lines: list[str]) -> list[str]:
    """Return fewer lines: choices of several groups that need the same small network train together."""
    joined: list[dict[str, str]] = []
    for words in (dict(word.split("=", 1) for word in line.split()) for line in lines):
        small = words.get("model") == "mlp" and not words.keys() & {"task", "data", "experiment"}
        fit = (
            one
            for one in joined
            if small and one.get("model") == "mlp" and one.keys() & words.keys() == {"model"}
        )
        if free := next(fit, None):
            free.update(words)
        else:
            joined.append(words)
    return [" ".join(f"{key}={value}" for key, value in one.items()) for one in joined]


def needs(choice: str) -> str:
    """Return overrides that make it small, with a network that is quick to build."""
    small = "model=mlp" if choice.startswith(("optimizer=", "schedule=", "callbacks=")) else ""
    return NEEDS.get(choice, small)


def defaults() -> set[str]:
    """The choices that a run makes which is asked for nothing: one line tries them all."""
    named = read_mapping(CONFIGS / "train.yaml")["defaults"]
    return {f"{g}={c}" for entry in named if isinstance(entry, dict) for g, c in entry.items()}


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_choice_trains_and_resumes(framework: str, slow: bool, tmp_path: Path) -> None:
    """`make test-engine` tries each choice in one framework in turn, several in a run; `make test-all` each alone in all."""
    command = [sys.executable, str(ROOT / "engine" / "tests" / "choice.py"), framework, str(tmp_path)]
    turn, quick = FRAMEWORKS.index(framework), lines(False)
    mine = [line for number, line in enumerate(quick) if number % len(FRAMEWORKS) == turn]
    asked = lines(True) + [line for line in quick if line not in mine] if slow else join(mine)
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
    states = answer.get("states")
    short = answer.get("steps") == [1, 1, 1]  # an experiment of one step may be over before it can be stopped
    over = short and states == ["completed"] * 3
    return (
        (over or states == ["completed", "preempted", "completed"])
        and answer["difference"] == 0
        and answer["same_metrics"] is True
    )


def of_the_other_side(answer: dict[str, object]) -> bool:
    """A choice without a target for this framework."""
    return "has no target for framework=" in str(answer.get("refused", ""))


def test_what_is_tried_by_an_experiment_is_read_from_the_files() -> None:
    """A model that fits the default task is tried separately from its experiment."""
    assert {
        "task=regression",
        "data=friedman",
        "task=language_model",
        "data=text",
        "model=gpt",
    } <= with_others()
    assert {"model=gpt_10m", "model=gpt_125m", "model=gpt_1b", "model=gpt_7b"} <= in_other_numbers()
    assert {"experiment=regression", "experiment=gpt_text", "model=mlp"} <= {
        line.split()[0] for line in lines(False)
    }
