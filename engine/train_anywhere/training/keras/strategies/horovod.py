"""The strategy for Horovod: processes with one device each, started by any launcher.

Horovod 0.28.1 has an optimizer for Keras, which silently does nothing under Keras 3: it overrides a method that Keras 3 never calls.
Here `optimizer.apply` averages the gradients before it clips them or checks them for overflow, so all ranks take the same decision.
"""

from contextlib import AbstractContextManager

import keras
import tensorflow as tf

from train_anywhere.distributed.horovod.initialize import explain_lost_ranks, import_horovod, start_horovod
from train_anywhere.distributed.topology import Topology
from train_anywhere.training.keras.strategies.base import Strategy

hvd = import_horovod("tensorflow")

SENDABLE = ("float16", "float32", "float64", "int32", "int64")


class HorovodStrategy(Strategy):
    """Data parallelism over running processes, whose devices are chosen.

    The `compression` "fp16" sends gradients with 16 bits: values above 65504 become infinite.
    """

    def __init__(self, topology: Topology, compression: str = "none") -> None:
        start_horovod(topology, hvd)
        super().__init__(topology.rank, topology.world_size, topology.world_size)
        self.topology = topology
        self.compression = getattr(hvd.Compression, compression)

    def explain_lost_ranks(self) -> AbstractContextManager[object]:
        """Return a context that turns the error of a broken collective into one line."""
        return explain_lost_ranks(self.topology)

    def average(self, gradients: list[tf.Tensor], name: str = "gradients") -> list[tf.Tensor]:
        """Average dense gradients in one group, and gather each sparse one (of embeddings)."""
        if self.processes == 1:
            return gradients
        options = {"op": hvd.Average, "name": name, "compression": self.compression}
        dense = [gradient for gradient in gradients if isinstance(gradient, tf.Tensor)]
        reduced = iter(hvd.grouped_allreduce(dense, **options) if dense else [])
        return [
            next(reduced)
            if isinstance(gradient, tf.Tensor)
            else hvd.allreduce(gradient, op=hvd.Average, name=f"{name}.sparse.{number}")
            for number, gradient in enumerate(gradients)
        ]

    def average_variables(self, variables: list[keras.Variable]) -> None:
        """Average the variables in one grouped all-reduce."""
        if self.processes == 1 or not variables:
            return
        values = [tf.convert_to_tensor(v.value) for v in variables]
        averages = hvd.grouped_allreduce(values, op=hvd.Average, name="variables")
        for variable, value in zip(variables, averages, strict=True):
            variable.assign(value)

    def broadcast_variables(self, variables: list[keras.Variable]) -> None:
        """Broadcast each variable, as int64 if Horovod can't send its type."""
        if self.processes == 1:
            return
        for number, variable in enumerate(variables):
            value = tf.convert_to_tensor(variable.value)
            packed = value if value.dtype.name in SENDABLE else tf.cast(value, tf.int64)
            sent = hvd.broadcast(packed, 0, name=f"broadcast_variables.{number}")
            variable.assign(tf.cast(sent, value.dtype))

    def sum(self, values: list[float]) -> list[float]:
        """Sum the numbers in one all-reduce."""
        if self.processes == 1:
            return values
        totals = hvd.allreduce(tf.constant(values, tf.float64), op=hvd.Sum, name="sum")
        return [float(v) for v in totals.numpy()]
