"""Compare this project's loaders with loops by hand over the same rows, as ratios of time.

    python engine/benchmarks/data.py [--rounds 5] [--framework lightning|keras] [--only pictures digits mnist]

Pictures: JPEG files of 500 x 375 pixels, decoded, cropped and scaled by the same function with two workers. By hand this is
PyTorch's DataLoader over single pictures, or a tf.data pipeline. Arrays, with the sizes of digits and MNIST: an epoch of
training with `model=mlp`. By hand the batches are slices of an array that was normalized before.

Each program runs in a new process in each round, and the programs take turns. With arrays they take several turns per
round, because a machine may change its speed within seconds. The time before the first batch does not count. The last line
is one JSON object.
"""

import argparse
import importlib.util
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(ROOT), str(ROOT / "engine")]

from benchmarks.rounds import Program, take_turns  # noqa: E402

PICTURES, BATCH, WORKERS = 512, 32, 2
SIZE = 224
KINDS = ("pictures", "digits", "mnist")
EPOCHS = {"pictures": 2, "digits": 40, "mnist": 1}
"""Timed epochs per turn of a process; one more epoch before the first turn is not timed."""

TURNS = {"pictures": 1, "digits": 3, "mnist": 3}
"""Turns of a process. A loader may read ahead while it waits for its turn; for arrays this does not matter: steps take longer."""

Batches = Iterable[Any]
Step = Callable[[Any, Any], Any]


def data_overrides(kind: str, folder: Path) -> list[str]:
    """Return the overrides that select the data in this project's configuration."""
    if kind == "pictures":
        return [
            "data=imagefolder",
            f"data.dir={folder}",
            f"data.batch_size={BATCH}",
            f"data.workers={WORKERS}",
        ]
    return (
        ["data=digits"] if kind == "digits" else ["data=mnist", f"data.dir={folder}", "data.download=false"]
    )


def write_data(kind: str, folder: Path) -> None:
    """Write files with random content: pictures as large as photographs, or sixty thousand digits of noise."""
    random = np.random.default_rng(0)
    if kind == "pictures":
        from PIL import Image

        for split, number in itertools.product(("train", "val"), range(PICTURES)):
            if split == "val" and number >= BATCH:
                break
            rough = Image.fromarray(random.integers(256, size=(38, 50, 3), dtype=np.uint8))
            path = folder / split / f"class-{number % 4}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            rough.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
    if kind == "mnist":
        raw = folder / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for split, rows in (("train", 60_000), ("t10k", 10_000)):
            for name, shape, most in (("images", (rows, 28, 28), 256), ("labels", (rows,), 10)):
                header = b"".join(size.to_bytes(4, "big") for size in shape)
                values = random.integers(most, size=shape, dtype=np.uint8)
                file = raw / f"{split}-{name}-idx{len(shape)}-ubyte"
                file.write_bytes(bytes([0, 0, 8, len(shape)]) + header + values.tobytes())


def load_config(framework: str, kind: str, folder: Path) -> Any:
    """Return this project's configuration."""
    from train_anywhere.config.command.compose import compose
    from train_anywhere.config.load import load

    return load(
        compose(
            [*data_overrides(kind, folder), "model=mlp", f"framework={framework}", "trainer.accelerator=cpu"]
        )
    )


def read_rows(config: Any, framework: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all training rows, normalized, and their labels."""
    from train_anywhere.data.open_data import open_splits

    train = open_splits(config.data, framework, config.seed).train
    images, labels = train.read(np.arange(len(train)), 0, False)
    return images, labels


def slices(length: int, size: int) -> Iterator[np.ndarray]:
    """Return an iterator over the row numbers of each batch of an epoch, in random order."""
    order = np.random.permutation(length)
    return (order[start : start + size] for start in range(0, length, size))


def picture_files(folder: Path) -> list[Path]:
    """Return the pictures of the training split."""
    return sorted((folder / "train").glob("*/*.jpg"))


def read_picture(path: str | Path) -> np.ndarray:
    """Return one picture, prepared like in this project's data set."""
    from PIL import Image

    from src.data.transforms import prepare_image

    with Image.open(path) as image:
        return prepare_image(image, SIZE, 3, np.random.default_rng())


# ---- torch


def torch_project(config: Any) -> Callable[[], Batches]:
    """Return a function that returns the batches (rows, labels) of an epoch from this project's loader."""
    from train_anywhere.distributed.topology import Topology
    from train_anywhere.training.lightning.run import make_setup

    loader = make_setup(config, Topology(rank=0, world_size=1)).loaders.opened["train"]
    return lambda: loader


def torch_by_hand(config: Any, kind: str, folder: Path) -> Callable[[], Batches]:
    """Return a function that returns the batches (rows, labels) of an epoch from a loop by hand."""
    import torch

    if kind == "pictures":
        return torch_pictures(folder)
    images, labels = read_rows(config, "lightning")
    x, y = torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels)
    return lambda: (
        (x[rows], y[rows]) for rows in map(torch.from_numpy, slices(len(y), config.data.batch_size))
    )


def torch_pictures(folder: Path) -> Callable[[], Batches]:
    """Return a function that returns PyTorch's DataLoader over single pictures."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Pictures(Dataset[Any]):
        files = picture_files(folder)

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> Any:
            return torch.from_numpy(read_picture(self.files[index]).transpose(2, 0, 1)), index % 4

    loader = DataLoader(Pictures(), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    return lambda: loader


def torch_step(config: Any, kind: str) -> Step:
    """Return a function that trains on a batch, or does nothing for pictures."""
    if kind == "pictures":
        return lambda rows, labels: None
    import torch
    from torch.nn import functional

    from src.models.lightning.mlp import mlp

    net = mlp((8, 8, 1) if kind == "digits" else (28, 28, 1), 10, [256, 128], 0.1)
    optimizer = torch.optim.AdamW(net.parameters())

    def step(rows: Any, labels: Any) -> None:
        loss = functional.cross_entropy(net(rows), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---- TensorFlow


def keras_project(config: Any) -> Callable[[], Batches]:
    """Return a function that returns the batches (rows, labels) of an epoch from this project's loader."""
    import train_anywhere  # noqa: F401  # isort: skip  # chooses Keras' backend
    from train_anywhere.data.open_data import open_splits
    from train_anywhere.training.keras.checkpoint import Position
    from train_anywhere.training.keras.dropin.model import open_model
    from train_anywhere.training.keras.strategies.base import Strategy

    _, loader, plan = open_model(config, Strategy(), open_splits(config.data, "keras", config.seed))
    batches = iter(loader.training(plan, Position()).map(lambda rows, weight: rows))
    return lambda: itertools.islice(batches, plan.train_batches)


def keras_by_hand(config: Any, kind: str, folder: Path) -> Callable[[], Batches]:
    """Return a function that returns the batches (rows, labels) of an epoch from a loop by hand."""
    import train_anywhere  # noqa: F401  # isort: skip  # chooses Keras' backend
    import tensorflow as tf

    if kind == "pictures":
        files = [str(path) for path in picture_files(folder)]

        def read(name: Any, label: Any) -> Any:
            picture = tf.numpy_function(lambda path: read_picture(path.decode()), [name], tf.float32)
            return tf.ensure_shape(picture, [SIZE, SIZE, 3]), label

        data = (
            tf.data.Dataset.from_tensor_slices((files, np.arange(len(files)) % 4))
            .shuffle(len(files))
            .repeat()
        )
        endless = iter(data.map(read, num_parallel_calls=WORKERS).batch(BATCH).prefetch(2))
        return lambda: itertools.islice(endless, len(files) // BATCH)
    x, y = read_rows(config, "keras")
    return lambda: ((x[rows], y[rows]) for rows in slices(len(y), config.data.batch_size))


def keras_step(config: Any, kind: str) -> Step:
    """Return a function that trains on a batch, or does nothing for pictures."""
    if kind == "pictures":
        return lambda rows, labels: None
    import keras
    import tensorflow as tf

    from src.models.keras.mlp import mlp

    shape = (8, 8, 1) if kind == "digits" else (28, 28, 1)
    model, optimizer = mlp(shape, 10, [256, 128], 0.1), keras.optimizers.AdamW()
    optimizer.build(model.trainable_variables)
    spec = (tf.TensorSpec([None, *shape], tf.float32), tf.TensorSpec([None], tf.int64))

    @tf.function(autograph=False, input_signature=spec)
    def step(rows: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(rows, training=True))
            loss = tf.reduce_mean(losses)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    return step


# ---- both


def time_program(framework: str, kind: str, program: str, folder: Path) -> None:
    """Print the seconds of an epoch for each line of the input."""
    config = load_config(framework, kind, folder)
    ours, by_hand, make_step = {
        "lightning": (torch_project, torch_by_hand, torch_step),
        "keras": (keras_project, keras_by_hand, keras_step),
    }[framework]
    epoch = ours(config) if program == "ours" else by_hand(config, kind, folder)
    step = make_step(config, kind)

    def seconds() -> float:
        began = time.perf_counter()
        for rows, labels in epoch():
            step(rows, labels)
        return time.perf_counter() - began

    seconds()
    for _ in sys.stdin:
        print(statistics.median(seconds() for _ in range(EPOCHS[kind])), flush=True)


class Programs:
    """This project's program and the one by hand, each in a process that waits for its turn."""

    def __init__(self, framework: str, kind: str, folder: Path) -> None:
        self.arguments, self.turns = (framework, kind, folder), TURNS[kind]
        self.running: dict[str, Program] = {}
        self.turns_taken: Counter[str] = Counter()

    def measure(self, program: str) -> float:
        """Return the seconds of an epoch; start a new process if the previous one has had its turns."""
        if self.turns_taken[program] % self.turns == 0:
            framework, kind, folder = self.arguments
            self.running[program] = Program([__file__, "--one", framework, kind, program, str(folder)])
        self.turns_taken[program] += 1
        seconds = self.running[program].next_number()
        if self.turns_taken[program] % self.turns == 0:
            self.running.pop(program).close()
        return seconds


def main() -> None:
    """Run the rounds, and print a table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--framework", "--side", choices=["lightning", "keras"])
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.one:
        framework, kind, program, folder = parsed.one
        time_program(framework, kind, program, Path(folder))
        return
    installed = [framework for framework in ("lightning", "keras") if importlib.util.find_spec(framework)]
    results: dict[str, dict[str, Any]] = {}
    print(f"{'':24}ms per epoch: by hand, ours  ratio, and its range over rounds")
    with tempfile.TemporaryDirectory() as temporary:
        for kind in parsed.only:
            write_data(kind, Path(temporary) / kind)
        for framework, kind in itertools.product(
            [parsed.framework] if parsed.framework else installed, parsed.only
        ):
            folder = Path(temporary) / kind
            programs = Programs(framework, kind, folder)
            found = take_turns(("hand", "ours"), parsed.rounds * TURNS[kind], programs.measure)
            hand, ours = (1000 * found.median_seconds(program) for program in ("hand", "ours"))
            ratio = found.ratio("ours", "hand")
            print(
                f"{framework + ', ' + kind:24}{hand:20.0f}  {ours:6.0f}   {ratio}  {found.describe_disturbed()}",
                flush=True,
            )
            results.setdefault(framework, {})[kind] = {
                "hand_ms": round(hand, 1),
                "ours_ms": round(ours, 1),
                "ratio": round(ratio.median, 3),
                "spread": [round(ratio.least, 3), round(ratio.most, 3)],
                "disturbed_rounds": found.disturbed,
            }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
