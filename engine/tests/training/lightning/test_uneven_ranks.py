"""Ranks with different numbers of rows: each value is that of all rows, whatever the arguments of `self.log`."""

from typing import Any

import pytest

from .test_dropin_ranks import train_runs

HERE = "engine.tests.training.lightning.uneven_strangers"
WORDS = (
    f"data._target_={HERE}.numbers",
    "strategy=ddp",
    "trainer.devices=2",
    "data.batch_size=10",
    "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1",
    "checkpoint.monitor=val_sync",
    "checkpoint.mode=min",
)
MEAN, LAST = 88.0, 173.0  # the squares of 0..16, and of the last batch, 10..16


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """What both ranks wrote in each of three runs."""
    folder = tmp_path_factory.mktemp("uneven")
    return train_runs(2, [
        (folder / "logging", *WORDS, f"task._target_={HERE}.Logging", "loggers=mlflow"),
        (folder / "misfit", *WORDS, f"task._target_={HERE}.Misfit"),
        (folder / "zero", *WORDS, f"task._target_={HERE}.Logging", "checkpoint.monitor=val_zero"),
    ])  # fmt: skip


def test_values_of_uneven_ranks_are_those_of_all_rows(ranks: list[list[dict[str, Any]]]) -> None:
    for rank in ranks[0]:
        assert "error" not in rank
        got = rank["metrics"]
        for kind in ("val", "test"):
            names = (
                "sync",
                "own",
                "given",
                "dict",
                "group",
                "torchmetrics",
                "forked_epoch",
                "own_forked_epoch",
            )
            assert {n: got[f"{kind}_{n}"] for n in names} == dict.fromkeys(names, MEAN)
            for name in ("forked_step", "own_forked_step", "on_step"):
                assert got.get(f"{kind}_{name}", LAST) == LAST, name
            for sync in (False, True):
                assert [got[f"{kind}_{n}_{sync}"] for n in ("sum", "max", "min")] == [1496.0, 256.0, 0.0]
        assert got["val_gathered"] == MEAN
        assert got["train_sync_epoch"] == got["train_own_epoch"]
        assert got["train_sync_step"] == got["train_own_step"]


def test_gathering_tensors_that_do_not_fit_names_all_shapes(ranks: list[list[dict[str, Any]]]) -> None:
    for rank in ranks[1]:
        assert "all_gather got tensors of the shapes [2, 3], [2, 4] from ranks 0 to 1" in rank["error"]


def test_a_monitor_of_rank_0_alone_is_refused_by_all_ranks(ranks: list[list[dict[str, Any]]]) -> None:
    assert ranks[2][0] == ranks[2][1]
    assert "logged with rank_zero_only=True" in ranks[2][0]["error"]
