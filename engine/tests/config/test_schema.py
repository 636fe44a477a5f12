"""Every choice and experiment composes. Contradictions are refused."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from train_anywhere.config.command.compose import compose, list_groups
from train_anywhere.config.keys import LIST_GROUPS, defaults, flatten
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError

Make = Callable[..., Config]
CHOICES = [f"{group}={choice}" for group, choices in list_groups().items() for choice in choices]


def refused(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(compose(overrides))
    return caught.value.problems


def test_every_choice_composes(make_config: Make) -> None:
    wrong = []
    for group, name in (choice.split("=") for choice in CHOICES if not choice.endswith("=custom")):
        if group in ("strategy", "cluster", "container", "local"):
            continue
        config = make_config(f"{group}={name}")
        if group == "experiment":
            continue
        found = getattr(config, group)
        if (list(found) if group in LIST_GROUPS else found.name) != (
            [name] if group in LIST_GROUPS else name
        ):
            wrong.append(f"{group}={name}")
    assert wrong == []


def test_all_contradictions_at_once() -> None:
    found = refused("data.batch_size=0", "optimizer.lr=-1", "checkpoint.monitor=val/accuracy", "name=a/b")
    assert sorted(p.partition("=")[0] for p in found) == [
        "checkpoint.monitor",
        "data.batch_size",
        "name",
        "optimizer.lr",
    ]


@cache
def composed(*groups: str) -> dict[str, Any]:
    return compose(groups)


def changed(tree: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    """A copy of the tree with one value in another place."""
    head, _, rest = key.partition(".")
    return {**tree, head: changed(tree[head], rest, value) if rest else value}


def said(groups: str, key: str, value: object) -> list[str]:
    try:
        load(changed(composed(*groups.split()), key, value))
    except ConfigError as error:
        return error.problems
    return []


HUGE, HEX = 10**400, 16**5000
WRONG: list[tuple[str, str, list[object]]] = [
    ("", "optimizer.lr", [HUGE, True, "fast", None, [], {}]), ("", "optimizer.betas", [[], [0.9], [0.9] * 3, 0.9, [[0.9], 0.9]]),
    ("model=mlp", "model.hidden", [[0], [1.5], ["a"], 8, [None]]), ("schedule=step", "schedule.milestones", [[2, 1], [1, 1], ["x"], 3]),
    ("data=imagefolder", "data.channels", [0, 2, "3d", None]),
    ("data=imagefolder", "data.dir", ["", " ", None, "a\0b", "\udcff", "$NOPE_NOT_SET", "~nosuchuser/x"]),
    ("", "data.batch_size", [HUGE, HEX, 1.5, None, True]), ("", "data", [None, [], "digits", {}, {"name": []}, {"name": {}}]),
    ("", "data.name", [[], {}, None, [[]], b"digits"]), ("", "seed", [2**64, HEX, 1.5]), ("", "trainer", [None, [], 3, "x"]),
    ("", "trainer.devices", ["all", None, [0]]), ("", "trainer.max_epochs", [0, HUGE]), ("", "trainer.val_check_interval", [0, 0.0, 1.5]),
    ("", "trainer.max_time", ["", "90", "1:30", 43200, "00:00:00:00", "25:61:61", "1:60:00", "0:00:60", "-1:00:00", "1::00"]),
    ("", "checkpoint.local", ["", "~nosuchuser/x"]), ("", "paths.results", ["", None, [], "$NOPE_NOT_SET/x", "~nosuchuser"]),
    ("", "name", ["", "latest", "a/b", "..", "-x", "x" * 101, [], None, "a\0b"]), ("", "cluster.account", ["", "  ", [], {}, b"x", True]),
    ("", "cluster.venv", ["", "$NOPE_NOT_SET", "~nosuchuser/env"]), ("", "trainer.micro_batch", [1.5, 36]),
    ("", "container.mounts", [[""], [None], "x", ["$NOPE_NOT_SET"]]),
]  # fmt: skip
"""A choice, a key of it, and values that it can't have. A number out of its range is refused by its rule, see test_strict.py."""


def test_no_wrong_value_gets_past() -> None:
    wrong = []
    for group, key, values in WRONG:
        for value in values:
            found = said(group, key, value)
            named = found and key.split(".")[0] in found[0]
            if not named or not all("\n" not in problem and len(problem) < 600 for problem in found):
                wrong.append((key, str(type(value)), found))
    assert wrong == []


def test_a_value_of_another_type_is_refused_for_every_key() -> None:
    """In one request: each problem is listed."""
    free = ("args", "features", "callbacks", "loggers", "trainer.extra", "model.lora")
    keys, tree = [key for key in flatten(defaults(Config)) if key not in free], composed()
    for key in keys:
        tree = changed(tree, key, {"a": [1]})
    with pytest.raises(ConfigError) as caught:
        load(tree)
    named = {problem.partition("=")[0]: problem for problem in caught.value.problems}
    assert len(keys) > 120 and {*keys} - named.keys() == set()
    assert [key for key in keys if " is not " not in named[key]] == []


def test_a_number_out_of_range_does_not_silence_the_other_checks() -> None:
    tree = changed(composed(), "data.batch_size", 0)
    with pytest.raises(ConfigError) as caught:
        load(
            changed(tree, "name", "latest"),
            lambda config: [f"data.batch_size={config.data.batch_size} is odd."],
        )
    assert [p.partition("=")[0] for p in caught.value.problems] == ["data.batch_size", "name"]
