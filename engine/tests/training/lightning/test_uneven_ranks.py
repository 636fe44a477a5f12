"""Ranks with different numbers of rows: each value is that of all rows."""

from pathlib import Path
from typing import Any

import pytest

from .test_dropin_ranks import train_runs

HERE = "engine.tests.training.lightning.uneven_strangers"
WORDS = (
    f"data._target_={HERE}.numbers", "strategy=ddp", "trainer.devices=2", "data.batch_size=10", "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1", "checkpoint.monitor=val_sync", "checkpoint.mode=min",
)  # fmt: skip
MEAN = 88.0  # of the squares of 0..16


def test_ranks_with_different_numbers_of_rows(tmp_path: Path) -> None:
    """Three runs in the same two processes, which take seconds to start."""
    logging, misfit, zero = train_runs(2, [
        (tmp_path / "logging", *WORDS, f"task._target_={HERE}.Logging", "loggers=mlflow"),
        (tmp_path / "misfit", *WORDS, f"task._target_={HERE}.Misfit"),
        (tmp_path / "zero", *WORDS, f"task._target_={HERE}.Logging", "checkpoint.monitor=val_zero"),
    ])  # fmt: skip
    check_values(logging)
    for rank in misfit:
        assert "all_gather got tensors of the shapes [2, 3], [2, 4] from ranks 0 to 1" in rank["error"]
    assert zero[0] == zero[1]
    assert "logged with rank_zero_only=True" in zero[0]["error"]


def check_values(ranks: list[dict[str, Any]]) -> None:
    """Compare each value with that of all rows."""
    for rank in ranks:
        assert "error" not in rank
        got = rank["metrics"]
        for kind in ("val", "test"):
            names = (
                "sync", "own", "given", "dict", "group", "torchmetrics", "forked_epoch", "own_forked_epoch",
            )  # fmt: skip
            assert {n: got[f"{kind}_{n}"] for n in names} == pytest.approx(dict.fromkeys(names, MEAN))
            for sync in (False, True):
                assert [got[f"{kind}_{n}_{sync}"] for n in ("sum", "max", "min")] == [1496.0, 256.0, 0.0]
        assert got["val_gathered"] == MEAN
        assert got["train_sync_epoch"] == got["train_own_epoch"]
