"""Sentences about ranks that are missing, hang or are slow, from RUN/monitor/watch.json."""

from collections.abc import Iterator, Mapping

from train_anywhere.monitor.ranks import mappings
from train_anywhere.monitor.run_facts import Facts, number


def not_there_yet(facts: Facts) -> Iterator[str]:
    """Ranks that the others wait for at the start."""
    late = facts.watch.get("late")
    if isinstance(late, list) and late:
        yield f"not there yet: rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}."


def hung(facts: Facts) -> Iterator[str]:
    """The ranks hang now, or did so and were ended."""
    hang, hangs = facts.watch.get("hang"), mappings(facts.watch.get("hangs"))
    if isinstance(hang, Mapping) and hang.get("line"):
        yield str(hang["line"])
    elif hangs:
        steps = ", ".join(str(h.get("step")) for h in hangs)
        yield f"the run hung at step {steps} and was ended: see the stacks in monitor/."


def slow_ranks(facts: Facts) -> Iterator[str]:
    """Ranks that the others wait for, as `features/hangs/stragglers.py` finds them."""
    for rank in mappings(facts.watch.get("slow")):
        if "rank" in rank and (factor := number(rank.get("factor"))) is not None:
            host = next((n.host for n in facts.present if rank["rank"] in n.ranks_here), None)
            where = f" on {host}" if host else ""
            yield f"rank {rank['rank']}{where} took {factor:.1f} times as long as the others for its own work, and all wait for it."
