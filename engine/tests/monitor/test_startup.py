"""Ranks that don't come to the meeting of all."""

from dataclasses import replace

from engine.tests.monitor.test_hangs import RANK
from train_anywhere.distributed.discover import hosts_by_rank
from train_anywhere.features.hangs.hangs import StartupWatch
from train_anywhere.monitor.ranks import RankStatus

STARTING = replace(RANK, section="start", place="meeting", step=0, seconds=10.0)
PLACES = {0: "node1", 1: "node1", 2: "node2", 3: "node2"}


def starting(*numbers: int, place: str = "meeting") -> list[RankStatus]:
    return [replace(STARTING, rank=n, host=PLACES[n], place=place) for n in numbers]


def test_a_rank_that_never_comes_is_named_once() -> None:
    watch = StartupWatch(PLACES, patience=40)
    there = starting(0, 1, 2)
    assert watch.update(there, 100.0) == []
    assert watch.update(there, 129.0) == []
    line = "rank 3 on node2 has not started, 41 s after the first rank; ranks 0-2 wait."
    assert watch.update(there, 131.0) == [line]
    assert watch.update(there, 140.0) == []
    assert watch.update(starting(0, 1, 2, 3), 150.0) == ["rank 3 has started: all ranks are connected."]


def test_a_rank_that_comes_and_does_not_meet_is_named() -> None:
    watch = StartupWatch(PLACES, patience=40)
    there = starting(0, 1, 3) + starting(2, place="importing")
    watch.update(there, 100.0)
    assert watch.update(there, 140.0) == [
        "rank 2 on node2 is still importing modules after 50 s; ranks 0-1,3 wait."
    ]


def test_the_place_of_a_rank_may_be_unknown() -> None:
    watch = StartupWatch({}, patience=0)
    said = watch.update(starting(1, 2), 100.0)
    assert said == ["ranks 0,3 have not started, 10 s after the first rank; ranks 1-2 wait."]


def test_nothing_is_said_before_the_first_and_after_the_meeting() -> None:
    watch = StartupWatch(PLACES, patience=0)
    assert watch.update([], 1000.0) == []
    assert watch.update([], 1700.0)[0].startswith("no rank has started after 600 s")
    assert watch.update([], 9000.0) == []
    assert watch.update(starting(0, 1, 2, 3, place="importing"), 1000.0) == []
    assert watch.update([replace(r, section="step") for r in starting(0, 1, 2)], 1000.0) == []


def test_ranks_of_nodes_that_nobody_watches_are_not_missed() -> None:
    watch = StartupWatch(PLACES, patience=0, unwatched={2, 3})
    assert watch.update(starting(0, 1), 100.0) == []


def test_hosts_of_ranks_from_the_batch_script() -> None:
    assert hosts_by_rank("node1:2,node2:2") == PLACES
    assert hosts_by_rank("") == {} and hosts_by_rank("node1") == {}
