"""Every choice and experiment composes into the typed configuration; contradictions are refused with the way out."""

from collections.abc import Callable

import pytest

from src.errors import ConfigError
from src.overrides import compose, groups
from src.schema import METRICS, Config, load

Make = Callable[..., Config]
CHOICES = [f"{group}={choice}" for group, choices in groups().items() for choice in choices]


def refused(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(compose(overrides))
    return caught.value.problems


def test_defaults(make_config: Make) -> None:
    config = make_config()
    assert (config.framework, config.data.name, config.model.name) == ("lightning", "digits", "cnn")
    assert config.name == "digits"
    assert config.checkpoint.monitor in METRICS


@pytest.mark.parametrize(
    "choice", [c for c in CHOICES if not c.startswith(("strategy=", "cluster=", "container="))]
)
def test_every_choice_composes(make_config: Make, choice: str) -> None:
    group, name = choice.split("=")
    config = make_config(choice)
    if group != "experiment":
        assert getattr(config, group).name == name


@pytest.mark.parametrize("choice", [c for c in CHOICES if c.startswith("strategy=")])
def test_every_strategy_composes_with_a_framework(make_config: Make, choice: str) -> None:
    made = []
    for framework in ("lightning", "keras"):
        try:
            made.append(make_config(choice, f"framework={framework}").strategy.name)
        except ConfigError as error:
            assert f"does not work with framework={framework}; use strategy=auto|single" in str(error)
    assert set(made) == {choice.removeprefix("strategy=")}


def test_impossible_combination_says_what_works() -> None:
    (problem,) = refused("framework=keras", "strategy=ddp")
    assert problem.startswith("strategy=ddp does not work with framework=keras; use strategy=auto|single")
    assert problem.endswith("or framework=lightning.")


def test_adam_has_two_betas() -> None:
    (problem,) = refused("optimizer=adamw", "optimizer.betas=[0.9]")
    assert problem == "optimizer.betas=[0.9] must have 2 items, such as [0.9,0.999]."


def test_all_contradictions_at_once() -> None:
    found = refused("data.batch_size=0", "optimizer.lr=-1", "checkpoint.monitor=val/accuracy", "name=a/b")
    assert len(found) == 4
    assert "data.batch_size=0 must be at least 1." in found
    assert any(
        "checkpoint.monitor=val/accuracy is no metric of this project; use one of train/loss" in p
        for p in found
    )


@pytest.mark.parametrize(
    "override, says",
    [
        ("trainer.max_epochs=0", "trainer.max_epochs=0 must be at least 1."),
        (
            "trainer.limit_val_batches=1.5",
            "must be at most 1; use a number of batches (10) or a fraction of them (0.1).",
        ),
        ("trainer.gradient_clip_val=0", "null turns clipping off"),
        ("trainer.precision=16", "trainer.precision='16' is not one of 32, bf16-mixed, 16-mixed"),
        ("seed=-1", "seed=-1 must not be negative."),
        ("trainer.fast_dev_run=1", "trainer.fast_dev_run='1' is not true or false"),
    ],
)
def test_bad_values(override: str, says: str) -> None:
    (problem,) = refused(override)
    assert says in problem
