"""The message in an environment that was made for the other framework."""

from collections.abc import Callable

import pytest

from tools.testing.frameworks import FIRST
from train_anywhere.config.schema import Config
from train_anywhere.distributed import packages
from train_anywhere.distributed.packages import framework_problem
from train_anywhere.launch.local_run import local_problems
from train_anywhere.testing.plugin import FRAMEWORKS
from train_anywhere.training.preflight import CHECKS

SAYS = f"framework={FIRST} needs zzq_none, which this environment does not have: run `make setup FRAMEWORK={FIRST}`"


def test_one_that_is_installed_is_not_missing() -> None:
    assert not framework_problem(FIRST) or len(FRAMEWORKS) > 1
    assert not all(map(framework_problem, FRAMEWORKS))


def test_what_to_type_is_said_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, make_config: Callable[..., Config]
) -> None:
    monkeypatch.setitem(packages.PACKAGES, FIRST, ("numpy", "zzq_none"))
    assert [p for p in local_problems(make_config(), CHECKS) if p.startswith(SAYS)]
