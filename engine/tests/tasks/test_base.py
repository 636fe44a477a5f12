"""Facts and metrics of every task."""

from collections.abc import Callable

import pytest

from train_anywhere import tasks as base
from train_anywhere.config.command.compose import list_groups
from train_anywhere.config.instantiate import locate
from train_anywhere.config.schema import Config
from train_anywhere.config.signatures import read

MakeConfig = Callable[..., Config]


def neutral(choice: str, make_config: MakeConfig) -> base.Task:
    """The part of the task that no framework knows: the first of its bases that needs none."""
    config = make_config(f"task={choice}")
    bases = read(config.task.target[config.framework]).bases
    return locate(bases[0], "task")()  # type: ignore[no-any-return]


@pytest.mark.parametrize("choice", sorted({*list_groups()["task"]} - {"custom"}))
@pytest.mark.quick("language_model", "classification")
def test_what_is_read_from_the_source_is_so(choice: str, make_config: MakeConfig) -> None:
    config, task = make_config(f"task={choice}"), neutral(choice, make_config)
    assert (config.task.metrics, config.task.headline, config.task.unit) == (
        task.metrics,
        task.headline,
        task.unit,
    )
    assert config.checkpoint.monitor == f"val/{task.headline}"
    assert config.checkpoint.mode == task.metrics[task.headline]


@pytest.mark.parametrize("choice", sorted({*list_groups()["task"]} - {"custom"}))
def test_every_metric_has_its_name(choice: str, make_config: MakeConfig) -> None:
    task = neutral(choice, make_config)
    for part in ("train", "val", "test"):
        assert list(task.report(part, [1.0] * len(task.sums))) == task.names(part)
        assert task.report(part, [0.0] * len(task.sums)) == {}
