"""Cells of a timing table: each possible one once, and a reason for each other one."""

from typing import Any

import pytest

from train_anywhere.config.checks.strategy_table import SUPPORTED
from train_anywhere.errors import ConfigError
from train_anywhere.slurm.scaling.grid import Cell, framework_of, make_cell, make_grid


def base(scheduler: str = "slurm", **trainer: Any) -> dict[str, Any]:
    return {
        "framework": next(iter(SUPPORTED)),
        "strategy": {"name": "auto"},
        "launch": "auto",
        "trainer": {"nodes": 1, "devices": "auto", **trainer},
        "cluster": {"scheduler": scheduler},
    }


def names(*words: str) -> list[str]:
    return [c.name.replace(f"-{next(iter(SUPPORTED))}", "") for c in make_grid(words, base()).cells]


def test_all_combinations_each_once() -> None:
    found = names("nodes=1,2", "devices=1,4", "strategy=horovod", "launch=srun,mpirun")
    assert found == [
        "1x1-single",
        "1x4-horovod-srun",
        "1x4-horovod-mpirun",
        "2x1-horovod-srun",
        "2x1-horovod-mpirun",
        "2x4-horovod-srun",
        "2x4-horovod-mpirun",
    ]


def test_long_names_and_other_words() -> None:
    made = make_grid(["trainer.devices=2,1,2", "model=mlp", "cluster.comment=a=b"], base())
    assert [c.devices for c in made.cells] == [2, 1]
    assert made.overrides == ["model=mlp", "cluster.comment=a=b"]


@pytest.mark.parametrize("framework", SUPPORTED)
def test_what_can_not_be_is_left_out_with_a_reason(framework: str) -> None:
    for strategy, support in SUPPORTED[framework].items():
        made = make_cell(2, 2, framework, strategy, "srun")
        assert isinstance(made, Cell) == support.several_nodes
        if not isinstance(made, Cell):
            assert made.endswith(("one node only.", "it uses one."))
        if support.ranks and "horovodrun" not in support.launch:
            assert "it can't start its ranks" in str(make_cell(1, 2, framework, strategy, "horovodrun"))


@pytest.mark.parametrize("framework", SUPPORTED)
def test_a_strategy_brings_its_framework(framework: str) -> None:
    for strategy in SUPPORTED[framework]:
        assert strategy in SUPPORTED[framework_of(strategy, framework)]
        assert framework_of(strategy, framework) == framework


def test_one_process_has_no_launch_method() -> None:
    for framework, strategies in SUPPORTED.items():
        for strategy, support in strategies.items():
            if not support.ranks and strategy != "single":
                made = {make_cell(1, 4, framework, strategy, launch) for launch in ("srun", "mpirun")}
                assert {c.launch for c in made if isinstance(c, Cell)} == {"auto"} and len(made) == 1


def test_all_problems_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make_grid(["nodes=x", "strategy=y"], base())
    assert len(caught.value.problems) == 2
