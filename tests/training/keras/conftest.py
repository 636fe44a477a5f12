"""Configurations of this side."""

from collections.abc import Callable

import pytest

from src.config.compose import compose
from src.config.load import load
from src.config.schema import Config


@pytest.fixture(scope="session")
def make_config() -> Callable[..., Config]:
    """`make_config("seed=3")`: the typed configuration that a command line with framework=keras gives."""
    return lambda *overrides: load(compose(["framework=keras", *overrides]))
