"""`monitor.sample_seconds`: sample CPUs, memory, disks, network and GPUs of a node."""

from collections.abc import Callable

from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.runs.folder import RunDir


class SampleNodes(Feature):
    """Sample the hardware use of each node while the run trains."""

    on_node = True

    def is_on(self) -> bool:
        """Return whether `monitor.sample_seconds` is set."""
        return self.config.monitor.sample_seconds is not None

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the sampler. Its import fails in a container without psutil."""

        def sampler() -> NodeService:
            from train_anywhere.features.sampler.sampler import Sampler

            return Sampler(run, self.config.monitor, self.config.trainer.max_nodes, host)

        return [sampler]
