"""Which rank is steadily slower than the others."""

from dataclasses import replace
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from engine.tests.monitor.test_hangs import RANK
from train_anywhere.features.hangs.supervisor import Stragglers, median_of_others
from train_anywhere.monitor.ranks import RankStatus


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


def test_noise_is_nobodys_fault() -> None:
    assert windows(Stragglers(), *[(0.02, 0.04), (0.02, 0.02), (0.04, 0.02)] * 5) == []


def test_what_costs_the_step_nothing_is_not_named() -> None:
    assert windows(Stragglers(), *[(0.001, 0.004)] * 6) == []


def test_a_single_rank_has_nobody_to_compare_with() -> None:
    assert windows(Stragglers(), *[(0.02,)] * 6) == []


def test_a_rank_that_waits_for_data_is_said_to() -> None:
    ranks = [replace(RANK, rank=n, own=0.0, data=0.0, trained=0) for n in range(2)]
    stragglers, said = Stragglers(), list[str]()
    for _ in range(5):
        said += stragglers.update(ranks)
        ranks = [_later(ranks[0], 1.0, 100), replace(_later(ranks[1], 4.0, 100), data=ranks[1].data + 3.0)]
    assert "(40.0 ms a batch, of which 30.0 ms wait for data; median of the others 10.0 ms)" in said[0]


@given(st.lists(st.integers(0, 9), min_size=2, max_size=9), st.data())
def test_the_median_of_the_others(values: list[int], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(values) - 1))
    others = values[:index] + values[index + 1 :]
    assert median_of_others(sorted(values), values[index]) == median(others)
