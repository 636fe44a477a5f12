"""What the watch on the first node has found (RUN/monitor/watch.json), as sentences."""

from collections.abc import Iterator, Mapping
from typing import Any


def findings(content: Mapping[str, Any]) -> Iterator[str]:
    """Who has not come, who is slow, who hangs; nothing of a run that is well, or has no watch."""
    late, slow, hang = content.get("late"), content.get("slow"), content.get("hang")
    if isinstance(late, list) and late:
        yield f"not there yet: rank{'s'[: len(late) > 1]} {', '.join(map(str, late))}"
    for one in slow if isinstance(slow, list) else ():
        if isinstance(one, dict) and "rank" in one and "factor" in one:
            yield f"rank {one['rank']} takes {one['factor']} times as long as the others"
    if isinstance(hang, dict):
        yield str(hang.get("line") or f"ranks hang at step {hang.get('step')}")
