"""What our loaders cost beside loops written by hand over the same rows: ours against plain ones, in one run, as ratios of time.

    python engine/benchmarks/data.py [--rounds 5] [--side lightning|keras] [--only pictures digits mnist]

Pictures: JPEG files of 500 x 375 pixels, decoded, cropped and scaled by the same function, two at once; by hand with torch's DataLoader
over single pictures, or with a tf.data pipeline. Arrays, of the sizes of digits and of MNIST: an epoch of training with `model=mlp`, whose
batches by hand are slices of an array that was normalised beforehand. A process for each, new in every round, which come in turn: those
with arrays several times, for a machine may change its speed within seconds. What comes before the first batch does not count. The last
line is one JSON object.
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

from benchmarks.rounds import Program, in_turn  # noqa: E402

PICTURES, BATCH, WORKERS = 512, 32, 2
SIZE = 224
KINDS = ("pictures", "digits", "mnist")
EPOCHS = {"pictures": 2, "digits": 40, "mnist": 1}
"""Timed when a process has its turn; before its first turn comes one that is not."""

TURNS = {"pictures": 1, "digits": 3, "mnist": 3}
"""Of a process. A loader may read ahead while it waits for its turn, which with arrays, where the steps take longest, changes nothing."""

Batches = Iterable[Any]
Step = Callable[[Any, Any], Any]


def words(kind: str, folder: Path) -> list[str]:
    """The data of our configuration."""
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


def make_data(kind: str, folder: Path) -> None:
    """Files of made-up content: pictures that are as large as photographs, and sixty thousand digits of noise."""
    random = np.random.default_rng(0)
    if kind == "pictures":
        from PIL import Image

        for part, number in itertools.product(("train", "val"), range(PICTURES)):
            if part == "val" and number >= BATCH:
                break
            rough = Image.fromarray(random.integers(256, size=(38, 50, 3), dtype=np.uint8))
            path = folder / part / f"class-{number % 4}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            rough.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
    if kind == "mnist":
        raw = folder / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for part, rows in (("train", 60_000), ("t10k", 10_000)):
            for name, shape, most in (("images", (rows, 28, 28), 256), ("labels", (rows,), 10)):
                header = b"".join(size.to_bytes(4, "big") for size in shape)
                values = random.integers(most, size=shape, dtype=np.uint8)
                file = raw / f"{part}-{name}-idx{len(shape)}-ubyte"
                file.write_bytes(bytes([0, 0, 8, len(shape)]) + header + values.tobytes())


def loaded(side: str, kind: str, folder: Path) -> Any:
    """Our configuration."""
    from train_anywhere.config.command.compose import compose
    from train_anywhere.config.load import load

    return load(compose([*words(kind, folder), "model=mlp", f"framework={side}", "trainer.accelerator=cpu"]))


def rows_of(config: Any, side: str) -> tuple[np.ndarray, np.ndarray]:
    """All training rows, normalised, and their labels."""
    from train_anywhere.data.open_data import open_splits

    train = open_splits(config.data, side, config.seed).train
    images, labels = train.read(np.arange(len(train)), 0, False)
    return images, labels


def slices(length: int, size: int) -> Iterator[np.ndarray]:
    """The rows of each batch of an epoch, in a random order."""
    order = np.random.permutation(length)
    return (order[start : start + size] for start in range(0, length, size))


def picture_files(folder: Path) -> list[Path]:
    """Those to train with."""
    return sorted((folder / "train").glob("*/*.jpg"))


def read_picture(path: str | Path) -> np.ndarray:
    """One, as our own data set prepares it."""
    from PIL import Image

    from src.data.transforms import prepare_image

    with Image.open(path) as image:
        return prepare_image(image, SIZE, 3, np.random.default_rng())


# ---- torch


def torch_ours(config: Any) -> Callable[[], Batches]:
    """Epochs of (rows, labels)."""
    from train_anywhere.distributed.topology import Topology
    from train_anywhere.training.lightning.run import make_setup

    loader = make_setup(config, Topology(rank=0, world_size=1)).splits.train.loader()
    return lambda: (batch.rows for batch in loader)


def torch_by_hand(config: Any, kind: str, folder: Path) -> Callable[[], Batches]:
    """The same."""
    import torch

    if kind == "pictures":
        return torch_pictures(folder)
    images, labels = rows_of(config, "lightning")
    x, y = torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels)
    return lambda: (
        (x[rows], y[rows]) for rows in map(torch.from_numpy, slices(len(y), config.data.batch_size))
    )


def torch_pictures(folder: Path) -> Callable[[], Batches]:
    """torch's DataLoader over single pictures."""
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
    """What is done with a batch: nothing, or a step of training."""
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


def keras_ours(config: Any) -> Callable[[], Batches]:
    """Epochs of (rows, labels)."""
    import train_anywhere  # noqa: F401  # isort: skip  # chooses Keras' backend
    from train_anywhere.training.keras.checkpoint.position import Position
    from train_anywhere.training.keras.run import open_task
    from train_anywhere.training.keras.strategies.base import Strategy

    _, loader, plan = open_task(config, Strategy())
    batches = iter(loader.training(plan, Position()).map(lambda rows, weight: rows))
    return lambda: itertools.islice(batches, plan.train_batches)


def keras_by_hand(config: Any, kind: str, folder: Path) -> Callable[[], Batches]:
    """The same."""
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
    x, y = rows_of(config, "keras")
    return lambda: ((x[rows], y[rows]) for rows in slices(len(y), config.data.batch_size))


def keras_step(config: Any, kind: str) -> Step:
    """What is done with a batch: nothing, or a step of training."""
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


def one(side: str, kind: str, who: str, folder: Path) -> None:
    """Print the seconds of an epoch for each line that is read."""
    config = loaded(side, kind, folder)
    ours, by_hand, make_step = {
        "lightning": (torch_ours, torch_by_hand, torch_step),
        "keras": (keras_ours, keras_by_hand, keras_step),
    }[side]
    epoch = ours(config) if who == "ours" else by_hand(config, kind, folder)
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
    """Ours and the one by hand, each in a process that waits for its turn."""

    def __init__(self, side: str, kind: str, folder: Path) -> None:
        self.words, self.turns = (side, kind, folder), TURNS[kind]
        self.running: dict[str, Program] = {}
        self.had: Counter[str] = Counter()

    def measured(self, who: str) -> float:
        """Seconds of an epoch."""
        if self.had[who] % self.turns == 0:
            side, kind, folder = self.words
            self.running[who] = Program([__file__, "--one", side, kind, who, str(folder)])
        self.had[who] += 1
        seconds = self.running[who].number()
        if self.had[who] % self.turns == 0:
            self.running.pop(who).end()
        return seconds


def main() -> None:
    """Run the rounds; print a table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", choices=["lightning", "keras"])
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.one:
        side, kind, who, folder = parsed.one
        one(side, kind, who, Path(folder))
        return
    installed = [side for side in ("lightning", "keras") if importlib.util.find_spec(side)]
    results: dict[str, dict[str, Any]] = {}
    print(f"{'':24}ms an epoch: by hand, ours   ratio, and its spread over rounds")
    with tempfile.TemporaryDirectory() as made:
        for kind in parsed.only:
            make_data(kind, Path(made) / kind)
        for side, kind in itertools.product([parsed.side] if parsed.side else installed, parsed.only):
            folder = Path(made) / kind
            programs = Programs(side, kind, folder)
            found = in_turn(("hand", "ours"), parsed.rounds * TURNS[kind], programs.measured)
            hand, ours = (1000 * found.middle(who) for who in ("hand", "ours"))
            ratio = found.ratio("ours", "hand")
            print(f"{side + ', ' + kind:24}{hand:20.0f}  {ours:6.0f}   {ratio}  {found.said()}", flush=True)
            results.setdefault(side, {})[kind] = {
                "hand_ms": round(hand, 1),
                "ours_ms": round(ours, 1),
                "ratio": round(ratio.median, 3),
                "spread": [round(ratio.least, 3), round(ratio.most, 3)],
                "disturbed_rounds": found.disturbed,
            }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
