"""TensorFlow's own data parallelism, tf.distribute, with Keras' models: one process or many.

Keras 3.15 leaves four gaps there, and each is avoided here:
  `fit` reduces its logs over the workers at every step, and wrongly: the loop has its own steps, without logs;
  `fit` builds the model from a batch, which it fails to reduce: the model is built before;
  optimizers clip gradients and check them for overflow before they sum them: `average` comes first;
  Keras' losses are divided by the number of replicas, those that a `train_step` makes itself are not: within a step there is
  one replica, so every loss is that of the replica's own rows, and gradients are averaged.
"""

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from train_anywhere.distributed.tf_config import tf_config
from train_anywhere.distributed.topology import Topology
from train_anywhere.training.keras.strategies.base import MakeDataset, Strategy


class Distributed(Strategy):
    """A strategy of tf.distribute: variables are mirrored on all replicas.

    Args:
        inner: TensorFlow's strategy.
        rank, processes: number of this process, and how many there are.
    """

    def __init__(self, inner: tf.distribute.Strategy, rank: int, processes: int) -> None:
        super().__init__(rank, processes, inner.num_replicas_in_sync)
        self.inner = inner
        self._functions: dict[Any, Callable[..., Any]] = {}

    def scope(self) -> AbstractContextManager[object]:
        """Variables created within are mirrored."""
        return self.inner.scope()

    def dataset(self, make: MakeDataset) -> tf.distribute.DistributedDataset:
        """The replicas of this process in turns, each with its own part of the global batch.

        Declared endless, or the workers would ask one another at every step whether there is another batch.
        """
        local = self.replicas // self.processes

        def of_process(context: tf.distribute.InputContext) -> tf.data.Dataset:
            streams = [make(self.rank * local + n, self.replicas) for n in range(local)]
            turns = tf.data.Dataset.choose_from_datasets(streams, tf.data.Dataset.range(local).repeat())
            merged = turns if local > 1 else streams[0]
            return merged.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

        return self.inner.distribute_datasets_from_function(of_process)

    def average(self, gradients: list[tf.Tensor], name: str = "gradients") -> list[tf.Tensor]:
        """One all-reduce within the step."""
        return _all_reduce("MEAN", gradients)

    def average_variables(self, variables: list[keras.Variable]) -> None:
        """One all-reduce of all of them."""
        self._reassign(variables, self.average)

    def from_rank_0(self, variables: list[keras.Variable]) -> None:
        """By a sum to which the others contribute zeros."""
        if self.processes > 1:
            for dtype in sorted({v.dtype for v in variables}):  # a reduction takes one type at a time
                self._reassign([v for v in variables if v.dtype == dtype], self._of_first)

    def sum(self, values: list[float]) -> list[float]:
        """By an all-reduce of the replicas' shares."""
        if self.processes == 1:
            return values
        local = self.replicas // self.processes  # each replica of this process counts, with its share
        share = tf.constant(values, tf.float64) / local
        totals = self._graph("sum", _sum_of_shares)(share)
        return [float(v) for v in self.inner.experimental_local_results(totals)[0]]

    def local_values(self, variable: keras.Variable) -> list[tf.Variable]:
        """One per replica of this process."""
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
        """`on_replica`, run on each replica as a graph, which is made at the first call for `key`."""
        if key not in self._functions:
            self._functions[key] = tf.function(lambda *a: self.inner.run(on_replica, a), autograph=False)
        return self._functions[key]

    def _of_first(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
        return _all_reduce("SUM", [tf.where(first, v, tf.zeros_like(v)) for v in values])


def _sum_of_shares(share: tf.Tensor) -> tf.Tensor:
    return _all_reduce("SUM", [share])[0]


def _all_reduce(operation: str, values: list[tf.Tensor]) -> list[tf.Tensor]:
    on_device = [tf.identity(v) for v in values]  # all_reduce fails for a value without a device
    return tf.distribute.get_replica_context().all_reduce(operation, on_device)


class OneInStep:
    """A strategy of tf.distribute that says within a step that there is one replica."""

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas; 1 within a step."""
        replicas: int = super().num_replicas_in_sync  # type: ignore[misc]
        within = tf.distribute.get_strategy() is self and not tf.distribute.in_cross_replica_context()
        return 1 if within else replicas


class Mirrored(OneInStep, tf.distribute.MirroredStrategy):
    """All devices of this process."""


class MultiWorkerMirrored(OneInStep, tf.distribute.MultiWorkerMirroredStrategy):
    """One device of each process."""


def mirrored(devices: list[str]) -> Distributed:
    """One process for several devices, by their names."""
    return Distributed(Mirrored(devices), 0, 1)


def multiworker_mirrored(topology: Topology, devices: list[str]) -> Distributed:
    """One process per rank, one device each. TensorFlow's server starts here, before any of its operations.

    Raises:
        TopologyError: the addresses of the ranks are not known.
    """
    gpu = devices[0].startswith("GPU")
    how = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(implementation=how.NCCL if gpu else how.RING)
    resolver = cluster(topology, gpus=int(gpu)) if topology.world_size > 1 else None
    inner = MultiWorkerMirrored(resolver, communication_options=options)
    return Distributed(inner, topology.rank, topology.world_size)


def cluster(topology: Topology, gpus: int) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Where all workers are: under srun from Slurm, under other launchers by TF_CONFIG.

    Args:
        gpus: devices of this process.
    """
    if topology.launched_by == "srun":
        return SlurmCluster(topology, gpus)
    os.environ["TF_CONFIG"] = tf_config(topology)
    return tf.distribute.cluster_resolver.TFConfigClusterResolver()


class SlurmCluster(tf.distribute.cluster_resolver.SlurmClusterResolver):
    """TensorFlow's resolver with the addresses that the topology knows.

    By itself it calls nvidia-smi, even if there is none, needs GPUs, and sorts the hosts by name, while Slurm numbers
    the tasks in the order of its own list (node9 before node10).

    Args:
        gpus: devices of this process.
    """

    def __init__(self, topology: Topology, gpus: int) -> None:
        self._cluster = json.loads(tf_config(topology))
        hosts = dict(topology.layout())
        super().__init__(
            {"worker": topology.world_size},
            tasks_per_node=hosts,
            gpus_per_node=max(hosts.values()),
            auto_set_gpu=False,
        )
        self.task_type, self.task_id = "worker", topology.rank
        self._gpus = gpus

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Addresses of all workers, in the order of the ranks."""
        return tf.train.ClusterSpec(self._cluster["cluster"])

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """Devices of this process."""
        return {"GPU": self._gpus}
