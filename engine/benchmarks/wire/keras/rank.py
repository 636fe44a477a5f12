"""One rank that counts what a training with Keras sends; `benchmarks.wire.count` starts it with the variables of a rank.

    python rank.py ours|raw multiworker_mirrored|horovod [WORD ...]

What a step sends is in its graph: the operations there and in all functions that it calls, each with the bytes that it is given. Between
the steps ours sends by the methods of its strategy, each one operation; those are counted while it trains. Prints both as JSON.
"""

import json
import math
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

sys.path.insert(1, str(Path(__file__).resolve().parents[4] / "engine"))

import train_anywhere  # noqa: F401  # isort: skip  # chooses Keras' backend: before Keras is imported

import keras
import numpy as np
import tensorflow as tf

from benchmarks.wire import STEPS
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.data.open_data import open_splits
from train_anywhere.distributed.discover import discover
from train_anywhere.distributed.horovod.initialize import import_horovod, start_horovod
from train_anywhere.distributed.layout import local_layout
from train_anywhere.distributed.network.addresses import tf_config
from train_anywhere.distributed.topology import Topology
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.launch.local_run import make_run
from train_anywhere.training.keras import run as side
from train_anywhere.training.keras.loop.callbacks import TrainingCallback
from train_anywhere.training.plan import build_network

BATCH = 4  # rows of each of two ranks
WORDS = [
    "framework=keras",
    "data=synthetic",
    f"data.batch_size={2 * BATCH}",
    f"data.length={2 * BATCH * 2 * STEPS}",
    "data.height=8",
    "data.width=8",
    "data.channels=1",
    "data.classes=10",
    "model=cnn",
    "optimizer=sgd",
    "trainer.devices=2",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    f"trainer.log_every_n_steps={STEPS}",
    "trainer.limit_val_batches=0",
    "trainer.limit_test_batches=0",
    "monitor.progress=none",
    "monitor.report=false",
]


def ours(config: Config, topology: Topology) -> tuple[Counter[str], Counter[str]]:
    """What a step sends, and what is sent between the first step of an epoch and its last."""
    between: Counter[str] = Counter()
    trained: list[TrainingCallback] = []
    fit = TrainingCallback.fit

    def watched(callback: TrainingCallback) -> None:
        trained.append(callback)
        for name in ("sum", "average_variables", "broadcast_variables"):
            watch(callback, name, between)
        fit(callback)

    TrainingCallback.fit = watched  # type: ignore[assignment,method-assign]
    side.train(config, RankProcess(make_run(config, [], local_layout(config)), topology, Stop()))
    return operations(trained[0].model.train_function), between


def watch(callback: TrainingCallback, name: str, between: Counter[str]) -> None:
    """Count the calls of a method of the strategy, and what it is given, while the epoch is under way."""
    strategy, method = callback.module.strategy, getattr(callback.module.strategy, name)

    def counted(values: list[Any]) -> Any:
        if 0 < callback.position.step < 2 * STEPS:
            sizes = [
                8 if isinstance(v, float) else math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in values
            ]
            between.update({name: 1, f"{name} bytes": sum(sizes)})
        return method(values)

    setattr(strategy, name, counted)


def raw(config: Config, topology: Topology) -> Counter[str]:
    """What a step of a loop by hand sends; it makes some."""
    by = by_tensorflow if config.strategy.name == "multiworker_mirrored" else by_horovod
    step, batches = by(build(config), topology)
    iterator = iter(batches)
    for _ in range(3):
        step(iterator)
    return operations(step)


def build(config: Config) -> Any:
    """Makes the network and its optimizer."""

    def make() -> tuple[keras.Model, keras.optimizers.Optimizer]:
        network = build_network(config, open_splits(config.data, "keras").facts)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(network.trainable_variables)
        return network, optimizer

    return make


def by_tensorflow(make: Any, topology: Topology) -> tuple[Any, Any]:
    """tf.distribute as its guide has it: https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl."""
    os.environ["TF_CONFIG"] = tf_config(topology)
    how = tf.distribute.experimental
    options = how.CommunicationOptions(implementation=how.CommunicationImplementation.RING)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        network, optimizer = make()

    def on_replica(rows: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = mean_loss(network, rows, labels) / strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply(gradients, network.trainable_variables)  # which sums them over the replicas

    @tf.function(autograph=False)
    def step(iterator: Any) -> None:
        strategy.run(on_replica, args=next(iterator))

    return step, strategy.distribute_datasets_from_function(lambda context: batches())


def by_horovod(make: Any, topology: Topology) -> tuple[Any, Any]:
    """Horovod as its guide has it: https://horovod.readthedocs.io/en/stable/tensorflow.html."""
    hvd = import_horovod("tensorflow")
    start_horovod(topology, hvd)
    network, optimizer = make()

    @tf.function(autograph=False)
    def step(iterator: Any) -> None:
        rows, labels = next(iterator)
        with tf.GradientTape() as tape:
            loss = mean_loss(network, rows, labels)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, [v.value for v in network.trainable_variables])
        optimizer.apply(gradients, network.trainable_variables)

    return step, batches()


def mean_loss(network: keras.Model, rows: Any, labels: Any) -> Any:
    """Cross entropy."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels, network(rows, training=True))
    )


def batches() -> tf.data.Dataset:
    """Endless ones."""
    rows = np.ones((BATCH, 8, 8, 1), "float32")
    return tf.data.Dataset.from_tensors((rows, np.zeros(BATCH, "int64"))).repeat()


def operations(function: Any) -> Counter[str]:
    """What the graph of a step sends in as many steps as are counted."""
    found: Counter[str] = Counter()
    for concrete in function._list_all_concrete_functions():
        graph = concrete.graph.as_graph_def(add_shapes=True)
        nodes = [*graph.node, *(node for called in graph.library.function for node in called.node_def)]
        for node in (n for n in nodes if n.op.startswith(("Collective", "Nccl", "Horovod"))):
            shapes = [
                tf.TensorShape(shape).num_elements() for shape in node.attr["_output_shapes"].list.shape
            ]
            size = tf.as_dtype(node.attr["T"].type).size * sum(shapes)
            found.update({node.op: STEPS, f"{node.op} bytes": STEPS * size})
    return found


def main(kind: str, strategy: str, *words: str) -> None:
    """Print what is sent."""
    with tempfile.TemporaryDirectory(prefix="wire-") as folder:
        config = load(compose([*WORDS, f"strategy={strategy}", f"paths.results={folder}", *words]))
        topology = discover()
        steps, row = (raw(config, topology), Counter[str]()) if kind == "raw" else ours(config, topology)
    print(json.dumps({"steps": steps, "row": row}))


if __name__ == "__main__":
    main(*sys.argv[1:])
