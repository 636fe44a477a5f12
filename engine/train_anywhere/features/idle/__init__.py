"""`monitor.idle`: report GPUs that do nothing."""

from collections.abc import Callable

from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.runs.folder import RunDir


class IdleGpus(Feature):
    """Watch for GPUs that do nothing, in the samples of all nodes."""

    on_node = True

    def is_on(self) -> bool:
        """Return whether GPUs are sampled, and the run may use them."""
        monitor = self.config.monitor
        on = monitor.idle == "warn" and monitor.sample_seconds is not None
        return on and self.config.trainer.accelerator not in ("cpu", "mps")

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the watch of this node."""
        from train_anywhere.features.idle.idle_gpus import IdleWatch

        return [lambda: IdleWatch(run, self.config, host)]
