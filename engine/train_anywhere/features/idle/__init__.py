"""`monitor.idle`: report GPUs that do nothing, or end the run before the site does."""

from collections.abc import Callable

from train_anywhere.features.feature import Check, Feature, NodeService
from train_anywhere.runs.folder import RunDir


class IdleGpus(Feature):
    """Watch for GPUs that do nothing, in the samples of all nodes."""

    on_node = True

    def is_on(self) -> bool:
        """Return whether GPUs are sampled, and the run may use them."""
        monitor = self.config.monitor
        on = monitor.idle == "stop" or (monitor.idle == "warn" and monitor.sample_seconds is not None)
        return on and self.config.trainer.accelerator not in ("cpu", "mps")

    def check(self, stage: Check, members: int) -> list[str]:
        """Return a message if the GPUs are not sampled often enough to end the run."""
        if self.config.monitor.idle != "stop" or stage != "any":
            return []
        from train_anywhere.features.idle.idle_gpus import SAMPLE_S

        every = self.config.monitor.sample_seconds
        if every is not None and every <= SAMPLE_S:
            return []
        now = "null" if every is None else f"{every:g}"
        return [
            f"monitor.idle=stop needs samples of the GPUs at least every {SAMPLE_S} s; set monitor.sample_seconds=10 (now {now}), or "
            "monitor.idle=warn."
        ]

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the watch of this node."""
        from train_anywhere.features.idle.idle_gpus import IdleWatch

        return [lambda: IdleWatch(run, self.config, host)]
