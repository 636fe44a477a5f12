"""How processes and devices share the work: scope of the variables, data, gradients, metrics."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import keras
import tensorflow as tf

from src.config.schema import Config
from src.distributed.devices import no_gpu
from src.distributed.layout import running_strategy
from src.distributed.topology import Topology
from src.errors import ConfigError

MakeDataset = Callable[[int, int], tf.data.Dataset]
"""(replica, number of replicas) to that replica's batches."""


class Strategy:
    """One process, one device; the others change what differs.

    Attributes:
        rank, processes: number of this process, and how many there are; rank 0 writes.
        replicas: devices that share the global batch, over all processes; each process has the same number.
    """

    def __init__(self, rank: int = 0, processes: int = 1, replicas: int = 1) -> None:
        self.rank, self.processes, self.replicas = rank, processes, replicas

    def scope(self) -> AbstractContextManager[object]:
        """Variables must be created within."""
        return nullcontext()

    def naming_a_lost_rank(self) -> AbstractContextManager[object]:
        """Within, the error of an exchange that broke off is one sentence."""
        return nullcontext()

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        """The optimizer gets gradients that are averaged already."""

    def dataset(self, make: MakeDataset) -> tf.data.Dataset:
        """The batches of this process, for `fit` and `evaluate`."""
        return make(self.rank, self.replicas)

    def average(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """The mean over replicas; called within the step."""
        return gradients

    def average_variables(self, variables: list[keras.Variable]) -> None:
        """Give all replicas the mean of their values; called between steps, by all processes."""

    def sum(self, values: list[float]) -> list[float]:
        """The sums over processes of a few numbers; called between steps, by all processes."""
        return values

    def from_rank_0(self, variables: list[keras.Variable]) -> None:
        """Give all processes rank 0's values; called between steps, by all processes."""

    def local_values(self, variable: keras.Variable) -> list[tf.Variable]:
        """The variable as each replica of this process has it."""
        return [variable.value]


def make_strategy(config: Config, topology: Topology) -> Strategy:
    """The strategy of the configuration; made before anything else of TensorFlow: it chooses devices."""
    return MAKERS[running_strategy(config, topology)[0]](config, topology)


def _single(config: Config, topology: Topology) -> Strategy:
    use_devices(config, topology.local_rank, 1)
    return Strategy()


def _mirrored(config: Config, topology: Topology) -> Strategy:
    from src.training.keras.strategies.tf_distribute import mirrored

    return mirrored(use_devices(config, 0, running_strategy(config, topology)[1]))


def _multiworker_mirrored(config: Config, topology: Topology) -> Strategy:
    from src.training.keras.strategies.tf_distribute import multiworker_mirrored

    return multiworker_mirrored(topology, use_devices(config, topology.local_rank, 1))


def _horovod(config: Config, topology: Topology) -> Strategy:
    from src.training.keras.strategies.horovod import HorovodStrategy

    use_devices(config, topology.local_rank, 1)
    assert config.strategy.name == "horovod"
    return HorovodStrategy(topology, config.strategy.compression)


MAKERS = {
    "single": _single,
    "mirrored": _mirrored,
    "multiworker_mirrored": _multiworker_mirrored,
    "horovod": _horovod,
}
"""By the names of `src.config.strategies`."""


def use_devices(config: Config, first: int, count: int) -> list[str]:
    """Choose this process's devices among those it can see; returns their names, such as ["GPU:0"].

    With GPUs, `count` of them from number `first` on (where a task sees its own only, those), and memory is
    taken as needed. Without, `count` logical CPUs, which try out on any machine what several GPUs do.

    Raises:
        ConfigError: where a GPU is asked for and there is none.
    """
    gpus = [] if config.trainer.accelerator == "cpu" else tf.config.list_physical_devices("GPU")
    if config.trainer.accelerator == "gpu" and not gpus:
        raise ConfigError(no_gpu("TensorFlow"))
    if len(gpus) > count:
        gpus = gpus[first : first + count]
    if gpus != tf.config.get_visible_devices("GPU"):  # may be changed before the first operation only
        tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    cpu = tf.config.list_physical_devices("CPU")[0]
    if not gpus and len(tf.config.get_logical_device_configuration(cpu) or [cpu]) < count:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return [f"GPU:{n}" for n in range(len(gpus))] or [f"CPU:{n}" for n in range(count)]
