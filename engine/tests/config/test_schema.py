"""Every choice and experiment composes. Contradictions are refused."""

import dataclasses
import math
import typing
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from train_anywhere.config.command.compose import compose, list_groups
from train_anywhere.config.keys import LIST_GROUPS, defaults, flatten
from train_anywhere.config.limits import Items, Range
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


def test_every_strategy_composes_with_a_framework(make_config: Make) -> None:
    never = []
    for name in list_groups()["strategy"]:
        made = []
        for framework in ("lightning", "keras"):
            try:
                made.append(make_config(f"strategy={name}", f"framework={framework}").strategy.name)
            except ConfigError as error:
                assert f"does not work with framework={framework}; use strategy=auto|single" in str(error)
        if set(made) != {name}:
            never.append(name)
    assert never == []


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


NAN, INF, HUGE, HEX = math.nan, math.inf, 10**400, 16**5000
GROUPS = {
    "optimizer": "optimizer=adamw",
    "sgd": "optimizer=sgd",
    "cnn": "model=cnn",
    "mlp": "model=mlp",
    "step": "schedule=step",
    "cosine": "schedule=cosine",
    "synthetic": "data=synthetic",
    "pictures": "data=imagefolder",
    "": "",
}
OUT_OF_RANGE: list[tuple[str, str, list[object]]] = [
    ("optimizer", "optimizer.lr", [0, -1.0, NAN, INF, -INF, HUGE, 1e300, True, "fast", None, [], {}]),
    ("optimizer", "optimizer.eps", [0, -1e-8, NAN, INF, 2.0]),
    ("optimizer", "optimizer.weight_decay", [-0.1, NAN, INF, HUGE]),
    ("optimizer", "optimizer.betas", [[], [0.9], [0.9, 0.9, 0.9], [0.9, 1.0], [-0.1, 0.9], [NAN, 0.9], 0.9, [[0.9], 0.9]]),
    ("sgd", "optimizer.momentum", [1.0, 1.5, -0.1, NAN, INF]),
    ("cnn", "model.dropout", [1.0, 1.5, -0.1, NAN]), ("cnn", "model.width", [0, -1, 10**9, 1.5, HUGE]),
    ("mlp", "model.hidden", [[0], [-1], [10**9], [1.5], ["a"], 8, [None]]),
    ("step", "schedule.milestones", [[-1], [2, 1], [1, 1], [NAN], [INF], ["x"], 3]),
    ("step", "schedule.gamma", [0, -1, 2.0, NAN, INF]), ("cosine", "schedule.final", [-0.1, 1.1, NAN]),
    ("cosine", "schedule.warmup_epochs", [-1, NAN, INF, HUGE]),
    ("synthetic", "data.height", [0, -1, 10**9]), ("synthetic", "data.channels", [0, -1, 10**9]),
    ("synthetic", "data.classes", [0, 10**12]), ("synthetic", "data.length", [0, -5, 10**12]),
    ("synthetic", "data.val_length", [0, -5, 10**12]),
    ("pictures", "data.image_size", [0, -1, 10**6, 1.5, "big"]),
    ("pictures", "data.channels", [0, 2, 4, "3d", None]),
    ("pictures", "data.dir", ["", " ", None, "a\0b", "\udcff", "$NOPE_NOT_SET", "~nosuchuser/x"]),
    ("", "data.batch_size", [0, -1, 2**30, 1.5, HUGE, HEX, None, True]),
    ("", "data.workers", [-1, 10**6, True]),
    ("", "data", [None, [], "digits", {}, {"name": []}, {"name": None}, {"name": {}}]),
    ("", "data.name", [[], {}, None, [[]], b"digits"]),
    ("", "seed", [-1, 2**32, 2**64, HUGE, HEX, 1.5, True, None]), ("", "trainer", [None, [], 3, "x"]),
    ("", "trainer.nodes", [0, -1, 10**9, HUGE]), ("", "trainer.devices", [0, -1, 10**6, "all", None, [0]]),
    ("", "trainer.total_devices", [0, -1, 10**9]), ("", "trainer.max_epochs", [0, -1, 2**31, HUGE]),
    ("", "trainer.max_steps", [0, -1]),
    ("", "trainer.limit_train_batches", [0, 0.0, -1, 1.5, NAN, INF, HUGE]),
    ("", "trainer.limit_val_batches", [-1, 1.5, NAN, INF]),
    ("", "trainer.limit_test_batches", [-0.5, 1.5, NAN]), ("", "trainer.accumulate_grad_batches", [0, -1]),
    ("", "trainer.gradient_clip_val", [0, -1, NAN, INF]), ("", "trainer.check_val_every_n_epoch", [0, -1]),
    ("", "trainer.val_check_interval", [0, 0.0, -1, 1.5, NAN, INF, HUGE]),
    ("", "trainer.num_sanity_val_steps", [-2, 1.5]),
    ("", "trainer.max_time", ["", "90", "1:30", 43200, "00:00:00:00", "25:61:61", "1:60:00", "0:00:60", "-1:00:00", "1::00"]),
    ("", "trainer.log_every_n_steps", [0, -1]), ("", "trainer.early_stopping.patience", [-1, 1.5]),
    ("", "trainer.early_stopping.min_delta", [-1, NAN, INF]), ("", "checkpoint.every_n_epochs", [0, -1]),
    ("", "checkpoint.every_n_steps", [0, -1]), ("", "checkpoint.every_n_seconds", [0, -1, NAN, INF]),
    ("", "checkpoint.keep_last", [0, -1]), ("", "checkpoint.keep_every_n_epochs", [0, -1]),
    ("", "checkpoint.local", ["", "~nosuchuser/x"]),
    ("", "paths.results", ["", None, [], "$NOPE_NOT_SET/x", "~nosuchuser"]),
    ("", "name", ["", "latest", "a/b", "..", "-x", "x" * 101, [], None, "a\0b"]),
    ("", "cluster.account", ["", "  ", [], {}, b"x", True]),
    ("", "cluster.venv", ["", "$NOPE_NOT_SET", "~nosuchuser/env"]),
    ("", "cluster.cpus_per_task", [0, -4, 10**9]),
    ("", "trainer.micro_batch", [0, -1, 1.5, 36]), ("", "monitor.sample_seconds", [0, -1, NAN, 1e9, True]),
    ("", "monitor.hang_minutes", [0, -1, NAN, INF]), ("", "cluster.nice", [0, -5, 1.5, 2**31, True]),
    ("", "cluster.max_gpu_hours", [0, -1, NAN, INF, ""]), ("", "cluster.signal_seconds", [-5, 1.5, NAN]),
    *(("", f"cluster.{key}", [0, -1, 1.5]) for key in ("chain", "max_running", "site.max_gpus", "members_per_gpu")),
    ("", "container.mounts", [[""], [None], "x", ["$NOPE_NOT_SET"]]),
]  # fmt: skip


def test_no_value_out_of_range_gets_past() -> None:
    wrong = []
    for group, key, values in OUT_OF_RANGE:
        for value in values:
            found = said(GROUPS[group], key, value)
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


def fields(cls: type, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field below a dataclass of the schema, with its type."""
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        yield from parts(hint, f"{path}.{name}")


def parts(hint: Any, path: str) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(hint):
        yield from fields(typing.cast(type, hint), path)
    elif typing.get_origin(hint) is typing.Annotated and any(isinstance(m, Range) for m in hint.__metadata__):
        return
    elif typing.get_origin(hint) is typing.Annotated:
        yield from parts(typing.get_args(hint)[0], path)
    elif typing.get_origin(hint) is typing.Literal:
        return
    elif typing.get_args(hint):
        for part in typing.get_args(hint):
            yield from parts(part, path)
    else:
        yield path, hint


def test_every_number_of_the_schema_has_a_range() -> None:
    assert {path for path, kind in fields(Config) if kind in (int, float)} == set()
    assert len(list(fields(Config))) > 50

    @dataclasses.dataclass
    class Forgotten:
        rates: typing.Annotated[list[float], Items()] | None

    assert [path for path, kind in fields(Forgotten) if kind in (int, float)] == [".rates"]
