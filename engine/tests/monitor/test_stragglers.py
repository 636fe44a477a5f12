"""Which rank is steadily slower than the others, how long they wait for it, and ranks that don't come to the start."""

import json
from dataclasses import replace

import pytest

from engine.tests.monitor.test_hangs import RANK
from engine.tests.monitor.test_node import MakeRun
from train_anywhere.distributed.discover import hosts_by_rank
from train_anywhere.features.hangs.hangs import StartupWatch
from train_anywhere.features.hangs.watch import Stragglers
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.monitor.live import Times, slowest_rank_wait
from train_anywhere.monitor.ranks import RankStatus
from train_anywhere.runs.attempts import STARTED


def windows(stragglers: Stragglers, *paces: tuple[float, ...], whole: float = 0.1) -> list[str]:
    """Yield windows of 10 s with each rank's own seconds in a batch of `whole` seconds."""
    said, ranks = (
        [],
        [replace(RANK, rank=n, host=f"node{n}", own=0.0, data=0.0, trained=0) for n in range(len(paces[0]))],
    )
    said += stragglers.update(ranks)
    for pace in paces:
        batches = round(10 / whole)
        ranks = [_later(r, own * batches, batches) for r, own in zip(ranks, pace, strict=True)]
        said += stragglers.update(ranks)
    return said


def _later(rank: RankStatus, own: float, batches: int) -> RankStatus:
    return replace(rank, own=rank.own + own, trained=rank.trained + batches, clock=rank.clock + 10)


def test_a_slow_rank_is_named_with_its_factor_once() -> None:
    stragglers = Stragglers()
    said = windows(stragglers, *[(0.02, 0.04, 0.02)] * 6)
    assert len(said) == 1 and "rank 1 on node1 is slow: its own work takes 2.0 times as long" in said[0]
    assert {n: round(f, 1) for n, f in stragglers.factors.items()} == {1: 2.0}


def test_named_again_if_it_changes_and_when_it_is_over() -> None:
    said = windows(Stragglers(), *[(0.02, 0.04)] * 4, *[(0.02, 0.08)] * 4, *[(0.02, 0.02)] * 2)
    assert [line.split(";")[0].split(" (")[0] for line in said] == [
        "rank 1 on node1 is slow: its own work takes 2.0 times as long as that of the others",
        "rank 1 on node1 is slow: its own work takes 4.0 times as long as that of the others",
        "rank 1 on node1 is as fast as the others again.",
    ]


@pytest.mark.parametrize(
    "paces", [[(0.02, 0.04), (0.02, 0.02), (0.04, 0.02)] * 5, [(0.001, 0.004)] * 6, [(0.02,)] * 6],
    ids=["noise", "costs the step nothing", "a single rank"],
)  # fmt: skip
def test_nobody_is_slow(paces: list[tuple[float, ...]]) -> None:
    assert windows(Stragglers(), *paces) == []


def test_a_rank_that_waits_for_data_is_said_to() -> None:
    ranks = [replace(RANK, rank=n, own=0.0, data=0.0, trained=0) for n in range(2)]
    stragglers, said = Stragglers(), list[str]()
    for _ in range(5):
        said += stragglers.update(ranks)
        ranks = [_later(ranks[0], 1.0, 100), replace(_later(ranks[1], 4.0, 100), data=ranks[1].data + 3.0)]
    assert "(40.0 ms a batch, of which 30.0 ms wait for data; median of the others 10.0 ms)" in said[0]


def test_the_slowest_rank_against_the_middle_one_of_this_attempt_s_nodes(make_run: MakeRun) -> None:
    _, run = make_run()
    run.monitor.mkdir()
    work = {"node1": [(10.0, 2.0), (11.0, 2.0)], "node2": [(30.0, 2.0)], "node9": [(500.0, 0.0)]}
    for host, ranks in work.items():
        content = {"host": host, "ranks": [{"own": own, "data": data} for own, data in ranks]}
        (run.monitor / f"ranks-{host}.json").write_text(json.dumps(content))
    (run.monitor / "ranks-node3.json").write_text('{"host": "node3", "ranks": 5}')
    assert slowest_rank_wait(run, {"node1", "node2", "node3"}) == 19.0  # node9 was another attempt's
    assert slowest_rank_wait(run, {"node2"}) == 0.0


def test_the_time_before_this_process_is_of_the_job(make_run: MakeRun) -> None:
    _, run = make_run()
    assert Times(run, Heartbeat(), {})()["before"] == 0.0
    assert Times(run, Heartbeat(), {STARTED: "1000000000"})()["before"] > 1e8
    assert Times(run, Heartbeat(), {STARTED: "now"})()["before"] == 0.0


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
