"""The strategies of tf.distribute, TensorFlow's own data parallelism, for Keras models.

Keras 3.15 has four bugs or gaps there, which are avoided here:
- `fit` reduces its logs over the workers at every step, and wrongly: the loop has its own steps, without logs.
- `fit` builds the model from a batch, which it fails to reduce: the model is built before.
- Optimizers clip gradients and check them for overflow before they sum them: `average` comes first.
- Keras divides its own losses by the number of replicas, but not those that a `train_step` computes itself. So the number of replicas
  appears as 1 within a step: each loss is the mean over the replica's own rows, and the gradients are averaged.
"""

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import no_gpu_message
from train_anywhere.distributed.network.addresses import tf_config
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.strategies.base import Strategy


class TfDistribute(Strategy):
    """A strategy based on tf.distribute: variables are mirrored on all replicas."""

    def __init__(self, inner: tf.distribute.Strategy, rank: int, processes: int) -> None:
        super().__init__(rank, processes, inner.num_replicas_in_sync)
        self.inner = inner
        self._functions: dict[Any, Callable[..., Any]] = {}

    def scope(self) -> AbstractContextManager[object]:
        """Return the context in which new variables are mirrored."""
        return self.inner.scope()

    def dataset(self, make: Callable[[int, int], tf.data.Dataset]) -> tf.distribute.DistributedDataset:
        """Return the batches of this process's replicas in turns, each with its own part of the global batch."""
        streams = [make(self.rank * self.local + n, self.replicas) for n in range(self.local)]
        turns = tf.data.Dataset.choose_from_datasets(streams, tf.data.Dataset.range(self.local).repeat())
        return self.distribute(turns if self.local > 1 else streams[0])

    def distribute(self, batches: tf.data.Dataset) -> tf.distribute.DistributedDataset:
        """Return batches for the replicas of this process in turns.

        The data set is declared endless; else the workers would ask each other at every step if there is another batch.
        """
        endless = batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        return self.inner.distribute_datasets_from_function(lambda context: endless)

    def average(self, gradients: list[tf.Tensor], name: str = "gradients") -> list[tf.Tensor]:
        """Average the gradients in one all-reduce within the step."""
        return _all_reduce("MEAN", gradients)

    def average_variables(self, variables: list[keras.Variable]) -> None:
        """Average all variables in one all-reduce."""
        self._reassign(variables, self.average)

    def broadcast_variables(self, variables: list[keras.Variable]) -> None:
        """Broadcast by a sum to which the other ranks contribute zeros."""
        if self.processes > 1:
            for dtype in sorted({v.dtype for v in variables}):  # a reduction takes one type at a time
                self._reassign([v for v in variables if v.dtype == dtype], self._sum_first_replica)

    def sum(self, values: list[float]) -> list[float]:
        """Sum the numbers by an all-reduce, to which local replicas contribute equal shares."""
        if self.processes == 1:
            return values
        share = tf.constant(values, tf.float64) / self.local
        totals = self._graph("sum", lambda own: _all_reduce("SUM", [own])[0])(share)
        return [float(v) for v in self.inner.experimental_local_results(totals)[0]]

    def local_values(self, variable: keras.Variable) -> list[tf.Variable]:
        """Return the variable's copy on each replica of this process."""
        return list(self.inner.experimental_local_results(variable.value))

    def _reassign(
        self, variables: list[keras.Variable], change: Callable[[list[tf.Tensor]], list[tf.Tensor]]
    ) -> None:
        """Apply `change` to the values of the variables on each replica."""

        def on_replica() -> None:
            values = change([v.value for v in variables])
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

        if variables:
            self._graph((change.__name__, *map(id, variables)), on_replica)()

    def _graph(self, key: object, on_replica: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs `on_replica` on each replica as a graph, cached by `key`."""
        if key not in self._functions:
            self._functions[key] = tf.function(lambda *a: self.inner.run(on_replica, a), autograph=False)
        return self._functions[key]

    def _sum_first_replica(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
        return _all_reduce("SUM", [tf.where(first, v, tf.zeros_like(v)) for v in values])


def _all_reduce(operation: str, values: list[tf.Tensor]) -> list[tf.Tensor]:
    on_device = [tf.identity(v) for v in values]  # all_reduce fails for values without a device
    return tf.distribute.get_replica_context().all_reduce(operation, on_device)


class OneReplicaInStep:
    """A strategy of tf.distribute whose number of replicas appears as 1 within a step."""

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas, or 1 within a step."""
        replicas: int = super().num_replicas_in_sync  # type: ignore[misc]
        within = tf.distribute.get_strategy() is self and not tf.distribute.in_cross_replica_context()
        return 1 if within else replicas


class Mirrored(OneReplicaInStep, tf.distribute.MirroredStrategy):
    """TensorFlow's strategy for all devices of this process."""


class MultiWorkerMirrored(OneReplicaInStep, tf.distribute.MultiWorkerMirroredStrategy):
    """TensorFlow's strategy for one device of each process."""


def cluster_resolver(topology: Topology, gpus: int) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Return the addresses of all workers: from Slurm under srun, else from TF_CONFIG."""
    if topology.launched_by == "srun":
        return SlurmCluster(topology, gpus)
    os.environ["TF_CONFIG"] = tf_config(topology)
    return tf.distribute.cluster_resolver.TFConfigClusterResolver()


class SlurmCluster(tf.distribute.cluster_resolver.SlurmClusterResolver):
    """TensorFlow's resolver for Slurm, with the addresses of the topology.

    TensorFlow's own calls nvidia-smi even if it is not installed, needs GPUs, and sorts the hosts by name, while Slurm numbers the tasks in
    the order of its own list (node9 before node10).
    """

    def __init__(self, topology: Topology, gpus: int) -> None:
        self._workers = json.loads(tf_config(topology))["cluster"]
        hosts = dict(topology.layout())
        options = {"gpus_per_node": max(hosts.values()), "gpus_per_task": gpus, "auto_set_gpu": False}
        super().__init__({"worker": topology.world_size}, tasks_per_node=hosts, **options)
        self.task_type, self.task_id = "worker", topology.rank

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Return the addresses of all workers, in the order of the ranks."""
        return tf.train.ClusterSpec(self._workers)


def make_strategy(name: str, config: Config, topology: Topology, devices: int) -> Strategy:
    """Return the strategy with this name, and choose devices before TensorFlow does. Raises TopologyError without addresses of ranks."""
    accelerator = config.trainer.accelerator
    if name == "mirrored" and devices > 1:
        return TfDistribute(Mirrored(use_devices(accelerator, 0, devices)), 0, 1)
    own = use_devices(accelerator, topology.local_rank, 1)
    if name == "multiworker_mirrored" and topology.world_size > 1:
        gpu, how = own[0].startswith("GPU"), tf.distribute.experimental.CommunicationImplementation
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=how.NCCL if gpu else how.RING
        )
        resolver = cluster_resolver(topology, gpus=int(gpu))
        inner = MultiWorkerMirrored(resolver, communication_options=options)
        return TfDistribute(inner, topology.rank, topology.world_size)
    if name == "horovod":
        # optional: Horovod may not be built
        from train_anywhere.training.keras.strategies.horovod import HorovodStrategy

        assert config.strategy.name == "horovod"
        return HorovodStrategy(topology, config.strategy.compression)
    return Strategy()


def use_devices(accelerator: str, first: int, count: int) -> list[str]:
    """Choose this process's devices, and return their names, such as ["GPU:0"].

    With GPUs, use `count` of them from number `first` on (all of them, if a task sees only its own), and allocate memory as needed.
    Without, create `count` logical CPUs, which stand for several GPUs on any machine. Raises ConfigError for a missing GPU.
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
