"""A tracker whose package is not there is refused in one sentence."""

import pytest

from train_anywhere.config.choices import Logger
from train_anywhere.errors import ConfigError
from train_anywhere.training.tracking import checks


def test_what_is_installed_passes() -> None:
    checks.wandb()
    checks.mlflow()


def test_the_sentence_says_what_to_install() -> None:
    with pytest.raises(
        ConfigError, match=r"^loggers=nosuch needs the package nosuch.* pip install no-such\.$"
    ):
        checks.require("nosuch", "no-such")


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_choices_name_their_checks(make_config: object, name: str) -> None:
    assert callable(make_config)
    neutral = ("task=regression", "model=mlp")
    section = make_config(f"loggers={name}", *neutral).loggers[name]
    assert isinstance(section, Logger)
    assert section.check == f"{checks.__name__}.{name}"
    assert callable(getattr(checks, name))
