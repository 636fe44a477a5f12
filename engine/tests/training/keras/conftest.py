"""Configurations of this side."""

from collections.abc import Callable

import pytest

from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config


@pytest.fixture(scope="session")
def make_config() -> Callable[..., Config]:
    """`make_config("seed=3")`: the typed configuration of a command line with framework=keras."""
    return lambda *overrides: load(compose(["framework=keras", *overrides]))
