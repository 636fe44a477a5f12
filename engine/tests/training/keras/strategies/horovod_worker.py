"""One rank of Horovod with Keras: trains a small network in each case and saves the result.

<launcher> python horovod_worker.py FOLDER CASE...     writes FOLDER/<case>.<world size>.<rank>.npz
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[5]))

sys.path.insert(1, str(Path(__file__).resolve().parents[5] / "engine"))

import train_anywhere  # noqa: F401  # isort: skip  # chooses Keras' backend: before Keras is imported

import keras
import numpy as np
import tensorflow as tf

from src.tasks.keras.classification import classification
from train_anywhere.distributed.discover import discover
from train_anywhere.distributed.horovod.initialize import explain_lost_ranks
from train_anywhere.training.keras.dropin.gradients import AveragingApply
from train_anywhere.training.keras.dropin.model import build_variables
from train_anywhere.training.keras.module import Module
from train_anywhere.training.keras.strategies.horovod import HorovodStrategy

GLOBAL_BATCH, STEPS = 12, 6  # for 1, 2 and 3 ranks


def network(case: str) -> keras.Model:
    """8 numbers to 3 classes."""
    image = inner = keras.Input((8,))
    if case.startswith("sparse"):
        inner = keras.layers.Embedding(20, 8)(inner[:, 0])
    inner = keras.layers.Dense(16, activation="tanh")(inner)
    if case == "batchnorm":
        inner = keras.layers.BatchNormalization()(inner)
    return keras.Model(image, keras.layers.Dense(3, dtype="float32")(inner))


def batches(case: str, rank: int, world_size: int) -> tf.data.Dataset:
    """This rank's rows of the same global batches, whatever the number of ranks."""
    random = np.random.default_rng(7)
    shape = (STEPS, GLOBAL_BATCH)
    image = random.normal(size=(*shape, 8)).astype("float32")
    if case.startswith("sparse"):
        image = np.abs(image * 7).round() % 20
    label, weight = random.integers(0, 3, shape), np.ones(shape, "float32")
    if case == "overflow":
        weight[2, -1] = np.inf
    rows = slice(rank * GLOBAL_BATCH // world_size, (rank + 1) * GLOBAL_BATCH // world_size)
    return tf.data.Dataset.from_tensor_slices((image[:, rows], label[:, rows], weight[:, rows]))


def run(case: str, folder: Path) -> None:
    """Train and save."""
    topology = discover()
    strategy = HorovodStrategy(topology, "fp16" if case == "compressed" else "none")
    if case == "not_averaged":
        strategy.average = lambda gradients, name: gradients
    keras.utils.clear_session()
    keras.utils.set_random_seed(100 + topology.rank)  # so that only a broadcast makes the ranks equal
    half = case in ("fp16", "overflow")
    keras.config.set_dtype_policy("mixed_float16" if half else "float32")
    inner = network(case)
    optimizer = keras.optimizers.SGD(0.1, 0.9, global_clipnorm=0.05 if "clip" in case else None)
    model = classification(inner, keras.optimizers.LossScaleOptimizer(optimizer, 16.0) if half else optimizer)
    applies, accumulate = [AveragingApply(model.optimizer, strategy)], 2 if case == "accumulate" else 1
    data = batches(case, topology.rank, topology.world_size)
    extra, *_ = build_variables(model, "classification", (), applies, data.element_spec, None)
    data = data if accumulate == 1 else data.batch(accumulate)
    module = Module(model, inner, strategy, extra, applies, accumulate=accumulate)
    strategy.broadcast_variables([*model.variables, *model.optimizer.variables])

    with explain_lost_ranks(topology):
        iterator = iter(data)
        for step in range(len(data)):
            if case == "die" and topology.rank == 1 and step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            model.train_function(iterator)
    before = [v.numpy() for v in model.non_trainable_variables]
    strategy.average_variables(module.moving_statistics())
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    np.savez(
        folder / f"{case}.{topology.world_size}.{topology.rank}.npz",
        **{f"weights/{n}": v.numpy() for n, v in enumerate(variables)},
        sums=np.concatenate([np.ravel(state) for state in module.metric_state()]),
        before=np.concatenate([np.ravel(v) for v in before]) if before else np.zeros(0),
        collectives=np.array(collectives(module.model.train_function) if module.several else []),
    )


def collectives(function: object) -> list[str]:
    """Horovod's operations in the graph of a tf.function and in all it calls."""
    (concrete,) = function._list_all_concrete_functions()
    graph = concrete.graph.as_graph_def()
    nodes = [*graph.node, *(node for called in graph.library.function for node in called.node_def)]
    return sorted(node.op for node in nodes if node.op.startswith("Horovod"))


if __name__ == "__main__":
    for name in sys.argv[2:]:
        run(name, Path(sys.argv[1]))
