"""The metrics that the project's tasks name."""

from collections.abc import Callable

import pytest

from train_anywhere.config.command.compose import list_groups
from train_anywhere.config.schema import Config


@pytest.mark.parametrize("framework", ["lightning", "keras"])
@pytest.mark.parametrize("choice", sorted({*list_groups()["task"]} - {"custom"}))
def test_the_first_metric_decides_which_checkpoint_is_the_best(
    choice: str, framework: str, make_config: Callable[..., Config]
) -> None:
    config = make_config(f"task={choice}", f"framework={framework}")
    name, mode = next(iter(config.task.monitors.items()))
    assert (config.checkpoint.monitor, config.checkpoint.mode) == (f"val/{name}", mode)
