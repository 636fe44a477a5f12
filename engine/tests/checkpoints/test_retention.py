"""Which checkpoints are kept, and why."""

import math
from pathlib import Path

import pytest

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.checkpoints.disk.staging import Retention


def saved(step: int, value: float | None = None, epoch: int = 0, batch: int = 0) -> SavedCheckpoint:
    return SavedCheckpoint(step, epoch, batch, {}, value, "mine", Path(str(step)))


def kept(rule: Retention, *ones: SavedCheckpoint) -> list[int]:
    return sorted(int(path.name) for path in rule.reasons(ones))


def test_the_last_ones_by_step_in_any_order() -> None:
    assert kept(Retention("max", 2), saved(3), saved(1), saved(2)) == [2, 3]


@pytest.mark.parametrize("mode, best", [("max", 2), ("min", 1)])
def test_the_best_one_besides(mode: str, best: int) -> None:
    ones = [saved(1, 0.1), saved(2, 0.9), saved(3, 0.5), saved(4)]
    rule = Retention(mode, 1)  # type: ignore[arg-type]
    assert kept(rule, *ones) == [best, 4]
    assert any("best" in why for why in rule.reasons(ones)[Path(str(best))])


def test_of_equal_ones_the_newest_is_best() -> None:
    found = Retention("max", 1).best([saved(1, 0.5), saved(2, 0.5), saved(3, 0.4)])
    assert found is not None and found.step == 2
    assert Retention("max", 1).best([saved(1)]) is None


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_best(mode: str, odd: float) -> None:
    for ones in ([saved(1, 0.5), saved(2, odd)], [saved(1, odd), saved(2, 0.5)]):
        found = Retention(mode, 1).best(ones)  # type: ignore[arg-type]
        assert found is not None and found.value == 0.5
    assert Retention(mode, 1).best([saved(1, odd)]) is None  # type: ignore[arg-type]


def test_every_nth_epoch_at_its_end_only() -> None:
    ones = [
        saved(5, epoch=0),
        saved(10, epoch=2),
        saved(12, epoch=2, batch=3),
        saved(20, epoch=4),
        saved(25, epoch=5),
    ]
    assert kept(Retention("max", 1, 2), *ones) == [10, 20, 25]


def test_nothing_to_keep() -> None:
    assert Retention("max", 1).reasons([]) == {}
