import pytest

from train_anywhere.slurm.script import units


def test_every_form_of_slurm() -> None:
    expected = {
        "90": 5400,
        90: 5400,
        "1:30": 90,
        "24:00:00": 86400,
        "1-12": 129600,
        "1-12:30": 131400,
        "7-00:00:00": 604800,
    }
    assert {text: units.seconds(text) for text in expected} == expected


def test_no_limit_has_another_form() -> None:
    with pytest.raises(ValueError, match=r"for no limit use cluster\.time=0"):
        units.seconds("UNLIMITED")


def test_clock_is_read_back() -> None:
    assert units.clock(90061) == "25:01:01"
    assert units.seconds(units.clock(90061)) == 90061


def test_sizes() -> None:
    assert [units.megabytes(text) for text in ("180G", "4096", "1T", "1.5g")] == [184320, 4096, 1048576, 1536]


def test_a_little_memory_is_not_none_and_none_is_0() -> None:
    assert (units.megabytes("1K"), units.megabytes("0"), units.megabytes("0G")) == (1, 0, 0)
    assert units.short_size(0) == "0"


def test_short_size_is_exact() -> None:
    assert units.short_size(184320) == "180G"
    assert units.short_size(1000) == "1000M"
