"""The parts of an allocation's time add up, and lost work is counted as lost."""

import pytest

from train_anywhere.monitor.verdicts import TITLES, goodput

DAY = "2026-11-22T"
FIRST = {
    "allocated": f"{DAY}09:00:00+00:00",
    "started": f"{DAY}09:00:30+00:00",
    "until": f"{DAY}09:20:00+00:00",
    "from_step": 0,
    "step": 1000,
    "ended_by": "killed",
    "devices": 4,
    "seconds": {"before": 25, "start": 15, "step": 1000, "data": 200, "slow": 50, "validation": 100, "checkpoint": 50},
}  # fmt: skip
SECOND = {
    **FIRST,
    "allocated": f"{DAY}09:30:00+00:00",
    "started": f"{DAY}09:30:30+00:00",
    "until": f"{DAY}09:50:00+00:00",
    "from_step": 800,
    "step": 1800,
    "ended_by": "completed",
}


def test_one_attempt() -> None:
    found = goodput([FIRST])
    assert found is not None
    assert found.whole == 1200
    assert sum(found.seconds.values()) == pytest.approx(1200)
    assert found.seconds == pytest.approx(
        dict.fromkeys(TITLES, 0.0)
        | {
            "progress": 750,
            "start": 40,
            "data": 200,
            "slow": 50,
            "validation": 100,
            "checkpoint": 50,
            "unknown": 10,
        }
    )
    assert found.share == pytest.approx(750 / 1200)
    assert found.device_hours == pytest.approx(4 * 1200 / 3600)


def test_what_came_after_rank_0s_last_word_is_the_end() -> None:
    """The launcher's end and the publishing count. A kill leaves uncounted training in it."""
    late = {"script_ended": f"{DAY}09:20:07+00:00"}
    for ended_by, end, unknown in (
        ("completed", 7, 10),
        ("failed", 7, 10),
        ("killed", 0, 17),
        ("hang", 0, 17),
        (None, 0, 17),
    ):
        found = goodput([{**FIRST, **late, "ended_by": ended_by}])
        assert found is not None
        assert (found.whole, found.seconds["end"], found.seconds["unknown"]) == (1207, end, unknown), ended_by


def test_steps_that_are_trained_again_are_lost() -> None:
    """200 of the first 1,000 steps with their waits. The queue between attempts does not count."""
    found = goodput([FIRST, SECOND])
    assert found is not None
    assert found.whole == 2400
    assert found.seconds["lost"] == pytest.approx(200)
    assert found.seconds["progress"] == pytest.approx(750 * 0.8 + 750)
    assert sum(found.seconds.values()) == pytest.approx(2400)


def test_an_attempt_that_saved_nothing_is_lost_as_a_whole() -> None:
    found = goodput([{**FIRST, "step": 100}, {**SECOND, "from_step": 0}])
    assert found is not None
    assert found.seconds["lost"] == pytest.approx(1000)


def test_steps_of_an_attempt_without_times_are_not_guessed() -> None:
    assert goodput([]) is None
    assert goodput([{"started": FIRST["started"], "step": 5}]) is None
    found = goodput([{"started": FIRST["started"], "step": 5}, SECOND])
    assert found is not None and found.whole == 1200


@pytest.mark.parametrize(
    "broken",
    [
        {"until": None},
        {"script_ended": "now"},
        {"seconds": {"step": "many"}},
        {"from_step": None},
        {"devices": None},
    ],
)
def test_what_an_older_version_wrote_is_no_error(broken: dict[str, object]) -> None:
    found = goodput([{**FIRST, **broken}])
    assert found is not None
    assert sum(found.seconds.values()) == pytest.approx(found.whole)
