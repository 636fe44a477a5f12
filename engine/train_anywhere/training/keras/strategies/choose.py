"""From a strategy's name to a `Strategy` on this process's devices."""

import tensorflow as tf

from train_anywhere.config.schema import Config
from train_anywhere.distributed.devices import no_gpu
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.strategies.base import Strategy
from train_anywhere.training.keras.strategies.tf_distribute import mirrored, multiworker_mirrored


def make_strategy(name: str, config: Config, topology: Topology, devices: int) -> Strategy:
    """The strategy of one rank; made before anything else of TensorFlow, since it chooses devices.

    Args:
        name: the resolved name, one of `MAKERS`.
        devices: that share the global batch.
    """
    return MAKERS[name](config, topology, devices)


def _single(config: Config, topology: Topology, devices: int) -> Strategy:
    use_devices(config, topology.local_rank, 1)
    return Strategy()


def _mirrored(config: Config, topology: Topology, devices: int) -> Strategy:
    return mirrored(use_devices(config, 0, devices))


def _multiworker_mirrored(config: Config, topology: Topology, devices: int) -> Strategy:
    return multiworker_mirrored(topology, use_devices(config, topology.local_rank, 1))


def _horovod(config: Config, topology: Topology, devices: int) -> Strategy:
    from train_anywhere.training.keras.strategies.horovod import (
        HorovodStrategy,  # optional: it may not be built
    )

    use_devices(config, topology.local_rank, 1)
    assert config.strategy.name == "horovod"
    return HorovodStrategy(topology, config.strategy.compression)


MAKERS = {
    "single": _single,
    "mirrored": _mirrored,
    "multiworker_mirrored": _multiworker_mirrored,
    "horovod": _horovod,
}
"""By the names of `train_anywhere.config.checks.strategy_table`."""


def use_devices(config: Config, first: int, count: int) -> list[str]:
    """Choose this process's devices among those it can see; returns their names, such as ["GPU:0"].

    With GPUs, `count` of them from number `first` on (or those that it sees, if a task sees only its own), and memory
    is taken as needed. Without, `count` logical CPUs, which stand for several GPUs on any machine.

    Raises:
        ConfigError: a GPU is requested and there is none.
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
