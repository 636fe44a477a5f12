"""Exclude nodes that failed twice when a job is requeued; `runs/attempts.py` has their file."""

from typing import Any

from train_anywhere.features.feature import Feature
from train_anywhere.features.restarts import may_restart
from train_anywhere.runs.attempts import read_bad_nodes


class BadNodes(Feature):
    """Exclude nodes that failed twice from the next requeue."""

    name = "bad_nodes"

    def is_on(self) -> bool:
        """Return whether the job has several nodes, and ranks that may be restarted or killed: only then is a bad node detected."""
        c = self.config
        detects = may_restart(c.cluster, c.trainer) or c.monitor.hang == "requeue"
        return detects and c.trainer.max_nodes > 1

    def verdicts(self, facts: Any) -> list[str]:
        """Return a sentence with the excluded nodes, if any."""
        nodes = read_bad_nodes(facts.run) if facts.run else []
        if not nodes:
            return []
        names, verb = ", ".join(nodes), "is" if len(nodes) == 1 else "are"
        return [
            f"{names} failed more than once and {verb} excluded: report this to the site, and meanwhile use "
            f"cluster.exclude={','.join(nodes)}."
        ]
