import pytest

from train_anywhere.slurm.script import units


def test_every_form_of_slurm() -> None:
    times = {
        "90": 5400,
        90: 5400,
        "1:30": 90,
        "24:00:00": 86400,
        "1-12": 129600,
        "1-12:30": 131400,
        "7-00:00:00": 604800,
    }
    assert {text: units.seconds(text) for text in times} == times
    with pytest.raises(ValueError, match=r"for no limit use cluster\.time=0"):
        units.seconds("UNLIMITED")
    sizes = {
        "180G": 184320,
        "4096": 4096,
        "1T": 1048576,
        "1.5g": 1536,
        "1K": 1,
        "0": 0,
        "0G": 0,
    }  # 0: all of a node
    assert {text: units.megabytes(text) for text in sizes} == sizes
    assert [units.short_size(size) for size in (184320, 1000, 0)] == ["180G", "1000M", "0"]


def test_clock_is_read_back() -> None:
    assert units.clock(90061) == "25:01:01" and units.seconds("25:01:01") == 90061
