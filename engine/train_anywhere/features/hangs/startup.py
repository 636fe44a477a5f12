"""Ranks that don't come, or not to the meeting of all: named within a minute, while the launcher and the others just wait."""

import math
from collections.abc import Collection, Mapping, Sequence

from train_anywhere.features.hangs.hangs import named, of_hosts
from train_anywhere.monitor.ranks import Seen

PATIENCE_S = 40.0
"""After the first rank has come: with the seconds until all nodes have told, less than a minute."""

NOBODY_S = 600.0
"""Before that a container may still be on its way to the nodes."""


class Meeting:
    """Follows the start of the ranks and says once who is missing, and once when all are there.

    Args:
        expected: host of each rank, as the job was started; empty if nobody says.
        patience: seconds after the first rank has come.
        unseen: ranks on nodes that nobody watches: they are not missed.
    """

    def __init__(
        self, expected: Mapping[int, str], patience: float = PATIENCE_S, unseen: Collection[int] = ()
    ) -> None:
        self.expected, self.patience, self.unseen = expected, patience, unseen
        self._began: float | None = None
        self._first: float | None = None
        self._said: tuple[int, ...] = ()

    def look(self, ranks: Sequence[Seen], now: float) -> list[str]:
        """What is to be said; `now` in this node's monotonic seconds."""
        if not ranks:
            return self._nobody(now)
        if self._first is None:
            self._first = now - max(r.seconds for r in ranks if r.clock)
        late = self.late(ranks)
        numbers = tuple(late)
        if not late:
            said, self._said = self._said, ()
            return (
                [f"{named(said)} {'has' if len(said) == 1 else 'have'} come: all ranks have met."]
                if said
                else []
            )
        if self._first is None or now - self._first < self.patience or set(numbers) <= set(self._said):
            return []
        self._said = numbers
        return [self._sentence(ranks, late, now - self._first)]

    def _nobody(self, now: float) -> list[str]:
        self._began = now if self._began is None else self._began
        if now - self._began < NOBODY_S:
            return []
        self._began = math.inf
        return [
            f"no rank has come for {NOBODY_S:.0f} s: the launcher has not started them, or the nodes can't."
        ]

    def late(self, ranks: Sequence[Seen]) -> dict[int, Seen | None]:
        """Ranks that others wait for: None for one that has not come at all; empty before the first comes and after all have met."""
        if not ranks:
            return {}
        there = {r.rank: r for r in ranks}
        missing: dict[int, Seen | None] = {
            n: None for n in range(ranks[0].world_size) if n not in {*there, *self.unseen}
        }
        meeting = any(r.section == "start" and r.place == "meeting" for r in ranks)
        if missing:
            return missing if meeting or all(r.section == "start" for r in ranks) else {}
        if not meeting:
            return {}
        return {r.rank: r for r in ranks if r.section == "start" and r.place == "importing"}

    def _sentence(self, ranks: Sequence[Seen], late: Mapping[int, Seen | None], seconds: float) -> str:
        waiting = [r.rank for r in ranks if r.rank not in late]
        wait = f"; {named(waiting)} {'wait' if len(waiting) > 1 else 'waits'}" if waiting else ""
        here = [r for r in late.values() if r]
        if here:
            return (
                f"{of_hosts(here)} still import{'s' if len(here) == 1 else ''} after {seconds:.0f} s{wait}."
            )
        hosts: dict[str, list[int]] = {}
        for n in late:
            hosts.setdefault(self.expected.get(n, ""), []).append(n)
        who = ", ".join(named(numbers) + (f" on {host}" if host else "") for host, numbers in hosts.items())
        return f"{who} {'has' if len(late) == 1 else 'have'} not come, {seconds:.0f} s after the first rank{wait}."
