"""Create the strategy with a given name on this process's devices."""

import tensorflow as tf

from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import no_gpu_message
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.strategies.base import Strategy
from train_anywhere.training.keras.strategies.tf_distribute import mirrored, multiworker_mirrored


def make_strategy(name: str, config: Config, topology: Topology, devices: int) -> Strategy:
    """Return the strategy of one rank; call this before any operation of TensorFlow, since it chooses devices.

    Args:
        name: the resolved name, a Keras strategy of `train_anywhere.config.checks.strategy_table`.
        config: the configuration.
        topology: the ranks.
        devices: number of devices that share the global batch.
    """
    accelerator = config.trainer.accelerator
    if name == "mirrored":
        return mirrored(use_devices(accelerator, 0, devices))
    own = use_devices(accelerator, topology.local_rank, 1)
    if name == "multiworker_mirrored":
        return multiworker_mirrored(topology, own)
    if name == "horovod":
        # optional: Horovod may not be built
        from train_anywhere.training.keras.strategies.horovod import HorovodStrategy

        assert config.strategy.name == "horovod"
        return HorovodStrategy(topology, config.strategy.compression)
    return Strategy()


def use_devices(accelerator: str, first: int, count: int) -> list[str]:
    """Choose this process's devices among the visible ones, and return their names, such as ["GPU:0"].

    With GPUs, use `count` of them from number `first` on (all of them, if a task sees only its own), and allocate memory as needed.
    Without, create `count` logical CPUs, which stand for several GPUs on any machine.

    Raises:
        ConfigError: `trainer.accelerator` requests a GPU and there is none.
    """
    gpus = [] if accelerator == "cpu" else tf.config.list_physical_devices("GPU")
    if accelerator == "gpu" and not gpus:
        raise ConfigError(no_gpu_message("TensorFlow"))
    if len(gpus) > count:
        gpus = gpus[first : first + count]
    if gpus != tf.config.get_visible_devices("GPU"):  # changes are allowed only before the first operation
        tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    cpu = tf.config.list_physical_devices("CPU")[0]
    if not gpus and len(tf.config.get_logical_device_configuration(cpu) or [cpu]) < count:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return [f"GPU:{n}" for n in range(len(gpus))] or [f"CPU:{n}" for n in range(count)]
