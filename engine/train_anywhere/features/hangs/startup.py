"""Report within a minute which ranks have not started or connected, while the launcher and the other ranks just wait."""

import math
from collections.abc import Collection, Mapping, Sequence

from train_anywhere.features.hangs.hangs import rank_names, ranks_by_host
from train_anywhere.monitor.ranks import RankStatus

PATIENCE_S = 40.0
"""Seconds after the first rank started; with the time until all nodes have written their state, less than a minute."""

LateRanks = dict[int, RankStatus | None]
"""Late ranks by number; None for a rank that has not started."""

NO_RANK_S = 600.0
"""Seconds to wait for the first rank: nodes may still be loading a container."""


class StartupWatch:
    """Watch of the ranks' start, which reports once the missing ranks, and once that all have started.

    Args:
        expected: host of each rank, from the batch script; empty if unknown.
        patience: seconds after the start of the first rank.
        unwatched: ranks on nodes without a monitor process, which are not reported.
    """

    def __init__(
        self, expected: Mapping[int, str], patience: float = PATIENCE_S, unwatched: Collection[int] = ()
    ) -> None:
        self.expected, self.patience, self.unwatched = expected, patience, unwatched
        self._began: float | None = None
        self._first: float | None = None
        self._reported: tuple[int, ...] = ()

    def update(self, ranks: Sequence[RankStatus], now: float) -> list[str]:
        """Return lines for the log; `now` is in seconds of this node's monotonic clock."""
        if not ranks:
            return self._check_first(now)
        if self._first is None:
            self._first = now - max(r.seconds for r in ranks if r.clock)
        late = self.late(ranks)
        numbers = tuple(late)
        if not late:
            reported, self._reported = self._reported, ()
            verb = "has" if len(reported) == 1 else "have"
            return [f"{rank_names(reported)} {verb} started: all ranks are connected."] if reported else []
        if self._first is None or now - self._first < self.patience or set(numbers) <= set(self._reported):
            return []
        self._reported = numbers
        return [self._describe(ranks, late, now - self._first)]

    def _check_first(self, now: float) -> list[str]:
        self._began = now if self._began is None else self._began
        if now - self._began < NO_RANK_S:
            return []
        self._began = math.inf  # report it once
        return [f"no rank has started after {NO_RANK_S:.0f} s: the launcher or the nodes can't start them."]

    def late(self, ranks: Sequence[RankStatus]) -> LateRanks:
        """Return ranks that others wait for, None for one that has not started; empty before the first starts and after all connect."""
        if not ranks:
            return {}
        there = {r.rank: r for r in ranks}
        expected = {*range(ranks[0].world_size)}
        missing: LateRanks = dict.fromkeys(sorted(expected - {*there, *self.unwatched}))
        meeting = any(r.section == "start" and r.place == "meeting" for r in ranks)
        if missing:
            return missing if meeting or all(r.section == "start" for r in ranks) else {}
        if not meeting:
            return {}
        return {r.rank: r for r in ranks if r.section == "start" and r.place == "importing"}

    def _describe(self, ranks: Sequence[RankStatus], late: LateRanks, seconds: float) -> str:
        waiting = [r.rank for r in ranks if r.rank not in late]
        wait = f"; {rank_names(waiting)} {'wait' if len(waiting) > 1 else 'waits'}" if waiting else ""
        here = [r for r in late.values() if r]
        if here:
            verb = "is" if len(here) == 1 else "are"
            return f"{ranks_by_host(here)} {verb} still importing modules after {seconds:.0f} s{wait}."
        hosts: dict[str, list[int]] = {}
        for n in late:
            hosts.setdefault(self.expected.get(n, ""), []).append(n)
        who = ", ".join(rank_names(n) + (f" on {host}" if host else "") for host, n in hosts.items())
        return f"{who} {'has' if len(late) == 1 else 'have'} not started, {seconds:.0f} s after the first rank{wait}."
