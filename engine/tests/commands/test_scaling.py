"""The cells of a timing table, and its figures, worked out by hand."""

from pathlib import Path
from typing import Any

import pytest

from train_anywhere.commands.scaling import add_speedups, format_rows, main, make_cells, make_row, split_words
from train_anywhere.config.checks.strategy_table import SUPPORTED
from train_anywhere.slurm.status.gather import Report

TRAINER = {"nodes": 1, "devices": "auto"}
BASE = {"framework": "lightning", "strategy": {"name": "auto"}, "launch": "auto", "trainer": TRAINER}


def cells(*words: str, batch: int | None = None) -> dict[str, list[str]]:
    return dict(make_cells(split_words(words)[0], BASE, batch))


def test_all_combinations_each_once() -> None:
    found = cells("nodes=1,2", "trainer.devices=1,4,1", "strategy=horovod", "launch=srun,mpirun")
    several = [
        f"{size}-lightning-horovod-{launch}"
        for size in ("1x4", "2x1", "2x4")
        for launch in ("srun", "mpirun")
    ]
    assert [*found] == ["1x1-lightning-single", *several]
    assert found["1x4-lightning-horovod-srun"] == [
        "trainer.nodes=1", "trainer.devices=4", "framework=lightning", "strategy=horovod", "launch=srun",
        "name=1x4-lightning-horovod-srun",
    ]  # fmt: skip
    others = ["model=mlp", "cluster.comment=a=b"]
    assert split_words(["devices=1,2", *others])[1] == others


def test_the_batch_grows_with_the_devices() -> None:
    sizes = [words[-2] for words in cells("devices=1,4", batch=8).values()]
    assert sizes == ["data.batch_size=8", "data.batch_size=32"]


@pytest.mark.parametrize("framework", SUPPORTED)
def test_a_strategy_brings_its_framework(framework: str) -> None:
    for strategy, support in SUPPORTED[framework].items():
        [(name, words)] = cells("devices=4", f"strategy={strategy}", "launch=srun").items()
        chosen = words[2].removeprefix("framework=")
        assert strategy in SUPPORTED[chosen] and (framework == chosen or strategy in SUPPORTED["lightning"])
        if not support.several_nodes:  # one process has no launch method
            assert words[4] == "launch=auto" and not name.endswith("srun")


def row(devices: int, **known: Any) -> dict[str, Any]:
    about = {"framework": "a", "strategy": "ddp", "launch": "auto"}
    return {"nodes": 1, "devices": devices, "total": devices, **about, **known}


def test_speed_up_is_relative_to_the_fewest_devices_of_the_same_framework() -> None:
    done = {"state": "completed", "unit": "images"}
    rows = [
        row(4, rate=300.0, seconds=30.0, waiting=0.2, **done),
        row(1, rate=100.0, **done),
        row(2, state="running"),
        row(4, rate=50.0, **done) | {"framework": "b"},
    ]
    add_speedups(rows)
    speedups = [(r.get("speedup"), r.get("efficiency")) for r in rows]
    assert speedups == [(3, 0.75), (1, 1), (None, None), (1, 1)]
    assert format_rows(rows).splitlines()[1].split()[-4:] == ["3.00", "0.75", "0.20", "completed"]


def test_a_damaged_run_is_a_row(tmp_path: Path) -> None:
    found = make_row(Report("x", tmp_path, overrides={"trainer.nodes": "x", "trainer.devices": "9" * 5000}))
    assert (found["total"], found["state"], found["strategy"]) == (1, "nothing", None)
    assert len(format_rows([found]).splitlines()) == 2


def test_a_table_is_found_in_a_folder_whose_name_has_an_equals_sign(tmp_path, capsys):
    (tmp_path / "scaling" / "lr=1").mkdir(parents=True)
    assert main([str(tmp_path / "scaling" / "lr=1")]) == 2
    assert "contains no timing table" in capsys.readouterr().err
