"""Compare the time of a training step with a loop by hand: this project and peers, as ratios.

    python engine/benchmarks/step.py [--rounds 3] [--framework lightning|keras]

A network of two layers (32 -> 32 -> 2), batches of 8 rows, plain SGD, one thread: almost nothing is computed, so the time
is that of the program around it. All use the same batches from the same loader. This project runs with all its defaults
(metrics, logs, progress, checkpoints, stop flag, learning rate, heartbeat).

Each program runs in its own process, and they take turns. The time of a process is the median over stretches of 20 steps,
without the first ones, so short disturbances of the machine change little. The last line is one JSON object.
"""

import argparse
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(ROOT), str(ROOT / "engine")]

from benchmarks.rounds import Rounds, run_for_number, take_turns  # noqa: E402

STRETCH = 20
"""Steps between two readings of the clock, the same as between two rows of this project's metrics."""

BATCH = 8
STEPS = 4000
DATA = ["data=synthetic", "data.height=4", "data.width=8", "data.channels=1", "data.classes=2"]
OVERRIDES = [
    *DATA,
    f"data.batch_size={BATCH}",
    f"data.length={BATCH * STEPS}",
    f"data.val_length={BATCH}",
    "model=mlp",
    "model.hidden=[32]",
    "model.dropout=0.0",
    "optimizer=sgd",
    "optimizer.momentum=0.0",
    "optimizer.weight_decay=0.0",
    "trainer.max_epochs=1",
    "trainer.devices=1",
    "trainer.accelerator=cpu",
    "schedule=constant",
]
CONTENDERS = {
    "lightning": ("hand", "ours", "trainer", "fabric"),
    "keras": ("hand", "ours", "fit", "fit of 32"),
}
ABOUT = {
    "hand": "a loop written by hand",
    "ours": "src/train.py; with Keras trainer.extra.steps_per_execution=20",
    "trainer": "Lightning's Trainer by default, one self.log",
    "fabric": "Lightning Fabric",
    "fit": "Keras' fit",
    "fit of 32": "Keras' fit, steps_per_execution=32",
}


class Clock:
    """Clock that measures the seconds of a step, as the median over stretches."""

    def __init__(self) -> None:
        self.marks: list[float] = []
        self._steps = 0

    def steps(self, count: int = 1, now: float | None = None) -> None:
        """Count further steps; `now` is the time at their end, by default the current time."""
        before, self._steps = self._steps // STRETCH, self._steps + count
        if self._steps // STRETCH > before:
            self.marks.append(time.perf_counter() if now is None else now)

    def seconds(self) -> float:
        """Return the median seconds of one step."""
        late = self.marks[len(self.marks) // 5 :]
        stretches = [after - before for before, after in itertools.pairwise(late)]
        return statistics.median(stretches) / (STRETCH * (self._steps // STRETCH) / len(self.marks))


def batches(config: Any) -> Iterable[Any]:
    """Return the training batches from this project's loader."""
    from train_anywhere.distributed.topology import Topology
    from train_anywhere.training.lightning.run import make_setup

    return make_setup(config, Topology(rank=0, world_size=1)).loaders.opened["train"]


def load_config(framework: str) -> Any:
    """Return the configuration of all programs of a framework."""
    from train_anywhere.config.command.compose import compose
    from train_anywhere.config.load import load

    return load(compose([*OVERRIDES, f"framework={framework}"]))


def network() -> Any:
    """Return the network of all programs with PyTorch."""
    from src.models.lightning.mlp import mlp

    return mlp((4, 8, 1), 2, [32], 0.0)


def by_hand(clock: Clock) -> None:
    """Train with PyTorch only."""
    import torch
    from torch.nn import functional

    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in batches(load_config("lightning")):
        rows, labels = batch[0].permute(0, 3, 1, 2), batch[1]
        loss = functional.cross_entropy(net(rows), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.steps()


def by_fabric(clock: Clock) -> None:
    """Train with Lightning's Fabric."""
    import torch
    from lightning.fabric import Fabric
    from torch.nn import functional

    fabric = Fabric(accelerator="cpu", devices=1)
    net = network()
    net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for batch in fabric.setup_dataloaders(batches(load_config("lightning"))):
        rows, labels = batch[0].permute(0, 3, 1, 2), batch[1]
        loss = functional.cross_entropy(net(rows), labels)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        clock.steps()


def by_trainer(clock: Clock) -> None:
    """Train with Lightning's Trainer and its defaults, one logged value, and a logger that writes a file."""
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.loggers import CSVLogger
    from torch.nn import functional

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: Any) -> Any:
            rows, labels = batch[0].permute(0, 3, 1, 2), batch[1]
            loss = functional.cross_entropy(self.network(rows), labels)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_batch_end(self, *arguments: Any) -> None:
            clock.steps()

    with tempfile.TemporaryDirectory() as folder:
        logger = CSVLogger(folder)
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, max_epochs=1, logger=logger, default_root_dir=folder
        )
        trainer.fit(Module(), batches(load_config("lightning")))


def keras_batches() -> Any:
    """Return the training batches from this project's loader: a tf.data.Dataset of (rows, labels)."""
    import train_anywhere  # noqa: F401  # isort: skip  # chooses Keras' backend
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from train_anywhere.data.open_data import open_splits
    from train_anywhere.training.keras.checkpoint import Position
    from train_anywhere.training.keras.dropin.model import open_model
    from train_anywhere.training.keras.strategies.base import Strategy

    config = load_config("keras")
    _, loader, plan = open_model(config, Strategy(), open_splits(config.data, "keras", config.seed))
    return loader.training(plan, Position())


def keras_network() -> tuple[Any, Any]:
    """Return the network and the optimizer of all programs with Keras."""
    import keras

    from src.models.keras.mlp import mlp

    return mlp((4, 8, 1), 2, [32], 0.0), keras.optimizers.SGD(0.1)


def by_hand_in_keras(clock: Clock) -> None:
    """Train with a tf.function for each step only."""
    data = keras_batches()
    import tensorflow as tf

    model, optimizer = keras_network()
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(iterator: Any) -> None:
        rows, labels = next(iterator)
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(rows, training=True))
            loss = tf.reduce_mean(losses)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    iterator = iter(data)
    for _ in range(STEPS):
        step(iterator)
        clock.steps()


def by_fit(clock: Clock, steps_per_execution: int = 1) -> None:
    """Train with `keras.Model.fit`."""
    data = keras_batches()
    import keras

    class Ticks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            clock.steps(steps_per_execution)

    model, optimizer = keras_network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False, steps_per_execution=steps_per_execution)
    model.fit(data, steps_per_epoch=STEPS, verbose=0, callbacks=[Ticks()])


PROGRAMS: dict[tuple[str, str], Callable[[Clock], None]] = {
    ("lightning", "hand"): by_hand,
    ("lightning", "fabric"): by_fabric,
    ("lightning", "trainer"): by_trainer,
    ("keras", "hand"): by_hand_in_keras,
    ("keras", "fit"): by_fit,
    ("keras", "fit of 32"): lambda clock: by_fit(clock, 32),
}


def time_project(framework: str) -> float:
    """Return the seconds of a step of src/train.py; its rows of metrics for TensorBoard have the times."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "src" / "train.py"), *OVERRIDES, f"framework={framework}"]
        command += ["trainer.extra.steps_per_execution=20"] if framework == "keras" else []
        subprocess.run([*command, f"paths.results={folder}"], check=True, stdout=subprocess.DEVNULL)
        [events] = Path(folder).glob("*/*/tensorboard/events*")
        rows = [event for event in EventFileLoader(str(events)).Load() if event.HasField("summary")]
    marks = {row.step: row.wall_time for row in reversed(rows)}
    clock = Clock()
    # Lightning counts the first step as 0, Keras as 1.
    first = min(set(marks) & {STRETCH - 1, STRETCH})
    for steps in range(first, STEPS - 1, STRETCH):
        clock.steps(STRETCH, marks[steps])
    return clock.seconds()


def measure(framework: str, name: str) -> float:
    """Run one program in a separate process, and return the seconds of a step."""
    return run_for_number([__file__, "--one", framework, name])


def main() -> None:
    """Run the rounds, and print a table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--framework", "--side", choices=[*CONTENDERS])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.one:
        framework, name = parsed.one
        if name == "ours":
            print(time_project(framework))
        else:
            clock = Clock()
            PROGRAMS[framework, name](clock)
            print(clock.seconds())
        return
    results: dict[str, dict[str, Any]] = {}
    installed = [framework for framework in CONTENDERS if importlib.util.find_spec(framework)]
    for framework in [parsed.framework] if parsed.framework else installed:
        found = take_turns(
            CONTENDERS[framework],
            parsed.rounds,
            partial(measure, framework),
            lambda text: print(f"{text} ...", file=sys.stderr, flush=True),
        )
        results[framework] = print_table(framework, found)
    print(json.dumps(results))


def print_table(framework: str, found: Rounds) -> dict[str, dict[str, Any]]:
    """Print a table of the programs of a framework, and return its rows."""
    print(
        f"\n{framework:<44}  {'us/step':>9}  {'us beyond hand':>14}  ratio to hand, and its range over rounds"
    )
    rows: dict[str, Any] = {}
    for name in found.seconds:
        ratio, median, difference = (
            found.ratio(name, "hand"),
            found.median_seconds(name),
            found.difference(name, "hand"),
        )
        print(f"{ABOUT[name]:<44}  {1e6 * median:9.0f}  {1e6 * difference:14.0f}  {ratio}")
        rows[name] = {
            "us": round(1e6 * median, 1),
            "over_us": round(1e6 * difference, 1),
            "ratio": round(ratio.median, 3),
            "spread": [round(ratio.least, 3), round(ratio.most, 3)],
        }
    if found.disturbed:
        print(found.describe_disturbed())
    return {**rows, "disturbed_rounds": found.disturbed}


if __name__ == "__main__":
    main()
