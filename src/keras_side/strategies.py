"""How ranks share the work: scope for the variables, data, average of the gradients, sums for the metrics."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import tensorflow as tf

from src.schema import Config
from src.topology import Topology

MakeDataset = Callable[[int, int], tf.data.Dataset]
"""(rank, world size) to that rank's batches."""


class Strategy:
    """One process, one device; the others change what differs.

    Attributes:
        rank, processes: number of this process, and how many there are; rank 0 writes.
        replicas: devices that share the global batch, over all processes.
    """

    def __init__(self, rank: int = 0, processes: int = 1, replicas: int = 1) -> None:
        self.rank, self.processes, self.replicas = rank, processes, replicas

    def scope(self) -> AbstractContextManager[object]:
        """Variables must be created within."""
        return nullcontext()

    def dataset(self, make: MakeDataset) -> tf.data.Dataset:
        """The batches of this process, for `fit` and `evaluate`."""
        return make(self.rank, self.replicas)

    def average(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """The mean over ranks; called in the step, on all ranks."""
        return gradients

    def sum(self, values: list[float]) -> list[float]:
        """The sums over processes of a few numbers; called outside of the step, by all of them."""
        return values

    def synchronize(self, variables: list[tf.Variable]) -> None:
        """Give all processes rank 0's values, once, before the first step."""


def make_strategy(config: Config, topology: Topology) -> Strategy:
    """The strategy of the configuration; made before anything else of TensorFlow: it chooses devices."""
    use_devices(config, topology.local_rank)
    return Strategy()


def use_devices(config: Config, local_rank: int) -> None:
    """Show TensorFlow this rank's GPU only, none with `trainer.accelerator=cpu`; leave memory to others."""
    gpus = tf.config.list_physical_devices("GPU")
    if config.trainer.accelerator == "cpu":
        gpus = []
    elif len(gpus) > 1:  # where each task sees its own GPU only, that one
        gpus = [gpus[local_rank]]
    if gpus != tf.config.get_visible_devices("GPU"):  # can be changed before the first operation only
        tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
