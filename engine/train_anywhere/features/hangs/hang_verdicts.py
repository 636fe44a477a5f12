"""Sentences about ranks that are missing, hang or are slow, from RUN/monitor/watch.json."""

from collections.abc import Iterator, Mapping

from train_anywhere.monitor.ranks import mappings
from train_anywhere.monitor.run_facts import Facts
from train_anywhere.runs.facts import number


def missing_ranks(facts: Facts) -> Iterator[str]:
    """Report ranks that the others wait for at the start."""
    late = facts.watch.get("late")
    if isinstance(late, list) and late:
        yield f"not started yet: rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}."


def hanging_ranks(facts: Facts) -> Iterator[str]:
    """Report ranks that hang now, or that hung and were killed."""
    hang, hangs = facts.watch.get("hang"), mappings(facts.watch.get("hangs"))
    if isinstance(hang, Mapping) and hang.get("line"):
        yield str(hang["line"])
    elif hangs:
        steps = ", ".join(str(h.get("step")) for h in hangs)
        yield f"the run hung at step {steps} and was stopped: see the stack traces in monitor/."


def slow_ranks(facts: Facts) -> Iterator[str]:
    """Report slow ranks, found by `features/hangs/stragglers.py`."""
    for rank in mappings(facts.watch.get("slow")):
        if "rank" in rank and (factor := number(rank.get("factor"))) is not None:
            host = next((n.host for n in facts.present if rank["rank"] in n.ranks_here), None)
            where = f" on {host}" if host else ""
            yield f"rank {rank['rank']}{where} took {factor:.1f} times as long as the others for its own work, and all wait for it."
