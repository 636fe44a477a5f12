"""An argument of a target that has the name of one of our keys gets what was typed, or the key is refused."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from train_anywhere.config import choices
from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose
from train_anywhere.config.instantiate import instantiate
from train_anywhere.config.keys import LIST_GROUPS, PASSED, OpenSection, key_fields
from train_anywhere.config.load import load, to_tree
from train_anywhere.config.schema import Config
from train_anywhere.config.strict import field_types
from train_anywhere.errors import ConfigError

MINE = ""
"""The module of the functions, which each test has for itself: sources are read once."""

OWN = "own"
"""The default of all arguments below: it has another type than most keys."""


CLASSES = {
    "task": choices.Task,
    "data": choices.Data,
    "model": choices.Model,
    "optimizer": choices.OtherOptimizer,
    "schedule": choices.OtherSchedule,
}

SEVERAL = ("name", "dir", "monitor", "folder")


@pytest.fixture(autouse=True)
def targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that return their arguments: one for each group, with the names of its keys."""
    names = {group: [field.name for field in key_fields(cls)] for group, cls in CLASSES.items()}
    names["several"] = [*SEVERAL]
    bodies = {group: ", ".join(f"{name}={OWN!r}" for name in keys) for group, keys in names.items()}
    bodies["data"] = bodies["data"].replace(f"batch_size={OWN!r}", "batch_size: int = 7")
    bodies["number"] = "name: int"
    source = "".join(f"def {group}({body}):\n    return locals()\n" for group, body in bodies.items())
    (tmp_path / f"typed_{tmp_path.name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(globals(), "MINE", f"typed_{tmp_path.name}")


TYPED: dict[str, tuple[str, Any]] = {
    "name": ("mine", "mine"),
    "monitors": ("{loss: min}", {"loss": "min"}),
    "batch_size": ("64", 64),
    "workers": ("0", 0),  # also the value that is not typed
    "stage": ("false", False),
    "from_data": ("{name: columns}", {"name": "columns"}),
    "lora": ("{rank: 4}", {"rank": 4}),
    "lr": ("0.5", 0.5),
    "scale_lr": ("none", "none"),
    "no_decay": ("[bias]", ["bias"]),
    "groups": ("[{match: a, lr: 0.1}]", [{"match": "a", "lr": 0.1}]),
    "interval": ("epoch", "epoch"),
}

KEYS = [(group, field.name) for group, cls in CLASSES.items() for field in key_fields(cls)]


def compose_typed(*typed: str) -> dict[str, Any]:
    own = (
        ["task._target_=lightning.pytorch.demos.boring_classes.BoringModel"]
        if "model" not in typed[0]
        else []
    )
    return compose(to_hydra_overrides([*own, *typed] if "task" not in typed[0] else list(typed)))


@pytest.mark.parametrize("group, key", KEYS)
def test_a_key_reaches_the_argument_of_its_name(group: str, key: str) -> None:
    text, value = TYPED[key]
    target = f"{group}._target_={MINE}.{group}"
    supplied = {"batch_size": 7} if group == "data" else {"lr": OWN} if group == "optimizer" else {}

    def call(*typed: str, again: bool = False) -> Any:
        tree = compose_typed(target, *typed)
        tree["data"].setdefault("_check_", None)
        section = getattr(load(to_tree(load(tree)) if again else tree), group)
        return instantiate(section, group, "lightning", **({} if typed else supplied))

    given = call(f"{group}.{key}={text}")
    assert given[key] == value
    assert call(f"{group}.{key}={text}", again=True) == given  # as each rank reads it from the run folder
    others = {name: default for name, default in call().items() if name != key}
    assert {name: given[name] for name in others} == others


def test_a_key_that_can_not_have_the_value_is_refused_with_the_way_out() -> None:
    target = f"data._target_={MINE}.data"
    with pytest.raises(
        ConfigError, match=r"data\.stage='fit' is not true or false\..* data\._args_=\[\.\.\.\]"
    ):
        load(compose_typed(target, "data.stage=fit"))


def test_a_required_argument_is_checked_and_given() -> None:
    target = f"task._target_={MINE}.number"
    with pytest.raises(ConfigError, match=r"'task\.name' is missing"):
        load(compose_typed(target))
    with pytest.raises(ConfigError, match=r"task\.name='a' is not a whole number"):
        load(compose_typed(target, "task.name=a"))
    config = load(compose_typed(target, "task.name=5"))
    assert instantiate(config.task, "task", "lightning") == {"name": 5}


def test_sections_without_keys_of_ours_pass_all_that_is_typed() -> None:
    kinds = {group: get_args(hint)[1] for group, hint in field_types(Config).items() if group in LIST_GROUPS}
    assert kinds == dict.fromkeys(LIST_GROUPS, OpenSection) and not key_fields(OpenSection)
    for group in ("callbacks", "loggers"):
        typed = dict(zip(SEVERAL, "abcd", strict=True))
        words = [f"{group}.mine.{key}={value}" for key, value in typed.items()]
        config = load(compose_typed(f"{group}.mine._target_={MINE}.several", *words))
        made = instantiate(getattr(config, group)["mine"], f"{group}.mine", "lightning", dir="x", folder="y")
        assert made == typed


def test_a_target_without_such_arguments_gets_none() -> None:
    tree = compose(["data.workers=2", "data.name=other", "optimizer=sgd", "optimizer.lr=0.5"])
    assert not re.search(PASSED, str(tree))
