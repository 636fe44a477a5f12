"""Nodes that failed twice: a job that goes back to the queue does not want them again; see `nodes_file.py`."""

from typing import Any

from train_anywhere.features.bad_nodes import nodes_file
from train_anywhere.features.feature import Feature
from train_anywhere.features.restarts import may_restart


class BadNodes(Feature):
    """Leave nodes that failed twice out at the next requeue."""

    name = "bad_nodes"

    def wanted(self) -> bool:
        """Return whether a job has several nodes, and ranks that may be started again or killed: then a bad node can be found."""
        found = may_restart(self.config) or self.config.monitor.hang == "requeue"
        return found and self.config.trainer.most_nodes > 1

    def verdicts(self, facts: Any) -> list[str]:
        """Return the nodes that are left out."""
        nodes = nodes_file.read(facts.run) if facts.run else []
        if not nodes:
            return []
        named, verb = ", ".join(nodes), "is" if len(nodes) == 1 else "are"
        return [
            f"{named} failed more than once and {verb} left out: tell the site, and use cluster.exclude={','.join(nodes)} meanwhile."
        ]
