"""Ranks that don't come to the meeting of all."""

from dataclasses import replace

from engine.tests.monitor.test_hangs import RANK
from train_anywhere.distributed.launcher_env import places
from train_anywhere.features.hangs.startup import Meeting
from train_anywhere.monitor.ranks import Seen

STARTING = replace(RANK, section="start", place="meeting", step=0, seconds=10.0)
PLACES = {0: "node1", 1: "node1", 2: "node2", 3: "node2"}


def starting(*numbers: int, place: str = "meeting") -> list[Seen]:
    return [replace(STARTING, rank=n, host=PLACES[n], place=place) for n in numbers]


def test_a_rank_that_never_comes_is_named_once() -> None:
    meeting = Meeting(PLACES, patience=40)
    there = starting(0, 1, 2)
    assert meeting.look(there, 100.0) == []
    assert meeting.look(there, 129.0) == []
    line = "rank 3 on node2 has not come, 41 s after the first rank; ranks 0-2 wait."
    assert meeting.look(there, 131.0) == [line]
    assert meeting.look(there, 140.0) == []
    assert meeting.look(starting(0, 1, 2, 3), 150.0) == ["rank 3 has come: all ranks have met."]


def test_a_rank_that_comes_and_does_not_meet_is_named() -> None:
    meeting = Meeting(PLACES, patience=40)
    there = starting(0, 1, 3) + starting(2, place="importing")
    meeting.look(there, 100.0)
    assert meeting.look(there, 140.0) == ["rank 2 on node2 still imports after 50 s; ranks 0-1,3 wait."]


def test_the_place_of_a_rank_may_be_unknown() -> None:
    meeting = Meeting({}, patience=0)
    said = meeting.look(starting(1, 2), 100.0)
    assert said == ["ranks 0,3 have not come, 10 s after the first rank; ranks 1-2 wait."]


def test_nothing_is_said_before_the_first_and_after_the_meeting() -> None:
    meeting = Meeting(PLACES, patience=0)
    assert meeting.look([], 1000.0) == []
    assert meeting.look([], 1700.0)[0].startswith("no rank has come for 600 s")
    assert meeting.look([], 9000.0) == []
    assert meeting.look(starting(0, 1, 2, 3, place="importing"), 1000.0) == []
    assert meeting.look([replace(r, section="step") for r in starting(0, 1, 2)], 1000.0) == []


def test_ranks_of_nodes_that_nobody_watches_are_not_missed() -> None:
    meeting = Meeting(PLACES, patience=0, unseen={2, 3})
    assert meeting.look(starting(0, 1), 100.0) == []


def test_hosts_of_ranks_from_the_batch_script() -> None:
    assert places("node1:2,node2:2") == PLACES
    assert places("") == {} and places("node1") == {}
