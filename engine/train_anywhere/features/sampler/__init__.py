"""`monitor.sample_seconds`: samples of a node's CPUs, memory, disks, network and GPUs; see `sampler.py`."""

from collections.abc import Callable

from train_anywhere.features.feature import Feature, Part
from train_anywhere.runs.folder import RunDir


class SampleNodes(Feature):
    """Sample what each node does while the run trains."""

    name = "sampler"
    on_node = True

    def wanted(self) -> bool:
        """Return whether `monitor.sample_seconds` is set."""
        return self.config.monitor.sample_seconds is not None

    def parts(self, run: RunDir, host: str) -> list[Callable[[], Part]]:
        """Return the sampler; a container that has no psutil does without."""

        def sampler() -> Part:
            from train_anywhere.features.sampler.sampler import Sampler

            return Sampler(run, self.config, host)

        return [sampler]
