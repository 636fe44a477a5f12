"""Compare reading `data=shards` with other readers of the same shards: CPU time and time of a sample, and their ratios.

    python engine/benchmarks/shards.py [--rounds 7] [--only arrays pictures parquet]

Twenty shards: arrays of 20 kB (`npy` and `cls`) in tar files, JPEG pictures of 500 x 375 pixels that are decoded, cropped and scaled by
the same function, or the arrays in Parquet. Ours shuffles rows in windows of 16 shards. The others: webdataset with a buffer of 1,000
samples, `tarfile` in an `IterableDataset` with a DataLoader and in `tf.data`, and pyarrow's batches, without shuffling. Each program
runs in one process without workers, and the programs take turns. The last line is one JSON object.
"""

import argparse
import importlib.util
import io
import json
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(ROOT), str(ROOT / "engine")]

from benchmarks.rounds import Program  # noqa: E402

SHARDS, BATCH, SIZE = 20, 50, 224
SAMPLES = {"arrays": 2000, "pictures": 200, "parquet": 2000}
PEERS = {
    "arrays": ("ours", "webdataset", "DataLoader", "ours in Keras", "tf.data"),
    "pictures": ("ours", "webdataset", "DataLoader", "ours in Keras", "tf.data"),
    "parquet": ("ours", "pyarrow"),
}
PACKAGES = {"webdataset": "webdataset", "pyarrow": "pyarrow", "tf.data": "tensorflow"}


def write_shards(kind: str, folder: Path) -> None:
    """Write shards with random content."""
    from engine.tests.data.shard_files import npy, write_tar

    random = np.random.default_rng(0)
    each = SAMPLES[kind] // SHARDS
    for shard in range(SHARDS):
        keys = range(shard * each, (shard + 1) * each)
        if kind == "pictures":
            from PIL import Image

            content = []
            for _ in keys:
                rough = Image.fromarray(random.integers(256, size=(38, 50, 3), dtype=np.uint8))
                file = io.BytesIO()
                rough.resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
                content.append(file.getvalue())
        else:
            content = [npy(random.random(5000, np.float32)) for _ in keys]
        labels = [key % 7 for key in keys]
        path = folder / "train" / f"{shard:02}"
        if kind == "parquet":
            import pyarrow
            from pyarrow import parquet

            path.parent.mkdir(parents=True, exist_ok=True)
            table = pyarrow.table({"image": content, "label": labels})
            parquet.write_table(table, path.with_suffix(".parquet"), row_group_size=50)
            continue
        field = "jpg" if kind == "pictures" else "npy"
        pairs = zip(keys, content, labels, strict=True)
        members = (m for k, c, n in pairs for m in ((f"{k:06}.{field}", c), (f"{k:06}.cls", b"%d" % n)))
        write_tar(path.with_suffix(".tar"), members)


def prepare(image: Any) -> np.ndarray:
    """Return a picture as `data=shards` prepares it."""
    from src.data.transforms import prepare_image

    return prepare_image(image, SIZE, 3, np.random.default_rng())


def read_tars(files: list[Path]) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the samples of tar files, one after the other, with the standard library."""
    from PIL import Image

    for path in files:
        with tarfile.open(path) as tar:
            for member in tar:
                content = tar.extractfile(member)
                assert content
                if member.name.endswith(".npy"):
                    value = np.load(io.BytesIO(content.read()))
                elif member.name.endswith(".jpg"):
                    value = prepare(Image.open(content))
                else:
                    yield value, int(content.read())


def ours(folder: Path) -> Any:
    """Return this project's data set and its order."""
    from src.data.shards import Decoder
    from train_anywhere.data.order.assignment import BatchOrder
    from train_anywhere.data.shards.open import open_shards

    data = open_shards(str(folder), str(folder.parent), 3, decode=Decoder(image_size=SIZE)).train
    return data, BatchOrder(BATCH, 3, train=True, blocks=data.blocks, drop_last=True)


def open_reader(name: str, folder: Path) -> Callable[[int], Iterable[Any]]:
    """Return a function that returns the batches of an epoch."""
    files = sorted((folder / "train").iterdir())
    shape = [SIZE, SIZE, 3] if folder.name == "pictures" else [5000]
    if name == "ours":
        from train_anywhere.data.torch.loader import Batches, torch_loader

        data, order = ours(folder)

        def read(epoch: int) -> Iterable[Any]:
            loader: Any = torch_loader(Batches(data, order))
            loader.sampler.set_epoch(epoch)
            return loader

        return read
    if name == "ours in Keras":
        from train_anywhere.data.tf.pipeline import read_batches

        data, order = ours(folder)
        count = len(data) // BATCH
        # a new one for each epoch: it would read ahead while others take their turns
        return lambda epoch: read_batches(data, order, 0, epoch * count, per_epoch=count).take(count)
    if name == "webdataset":
        import webdataset

        stream = webdataset.WebDataset([*map(str, files)], shardshuffle=SHARDS).shuffle(1000)
        stream = stream.decode(*["pil"] * (folder.name == "pictures"))
        if folder.name == "pictures":
            stream = stream.map_dict(jpg=prepare)
        stream = stream.to_tuple("jpg;npy", "cls").batched(BATCH)
        return lambda epoch: webdataset.WebLoader(stream, batch_size=None)
    if name == "DataLoader":
        from torch.utils.data import DataLoader, IterableDataset

        class Tars(IterableDataset[Any]):
            def __iter__(self) -> Iterator[Any]:
                return read_tars(files)

        return lambda epoch: DataLoader(Tars(), BATCH)
    if name == "pyarrow":
        from pyarrow.parquet import ParquetFile

        def columns() -> Iterator[Any]:
            for path in files:
                for batch in ParquetFile(path).iter_batches(BATCH, use_threads=False):
                    found = batch.to_pydict()
                    yield (
                        np.stack([np.load(io.BytesIO(one)) for one in found["image"]]),
                        np.array(found["label"]),
                    )

        return lambda epoch: columns()
    import tensorflow as tf

    spec = (tf.TensorSpec(shape, tf.float32), tf.TensorSpec([], tf.int64))
    rows = tf.data.Dataset.from_generator(lambda: read_tars(files), output_signature=spec)
    return lambda epoch: rows.batch(BATCH).prefetch(2)


def time_reader(name: str, folder: Path) -> None:
    """Print microseconds of CPU time, then of time, of a sample, alternately for each line of the input."""
    read, samples = open_reader(name, folder), SAMPLES[folder.name]
    for _ in read(0):
        pass
    waiting: list[float] = []
    for epoch, _ in enumerate(sys.stdin, 1):
        if not waiting:
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in read(epoch):
                pass
            waiting = [time.perf_counter() - wall, time.process_time() - cpu]
        print(1e6 * waiting.pop() / samples, flush=True)


def main() -> None:
    """Run the rounds, and print a table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=PEERS, default=[*PEERS])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.one:
        time_reader(parsed.one[0], Path(parsed.one[1]))
        return
    results: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for kind in parsed.only:
            if kind == "parquet" and not importlib.util.find_spec("pyarrow"):
                continue
            write_shards(kind, Path(temporary) / kind)
            names = [n for n in PEERS[kind] if importlib.util.find_spec(PACKAGES.get(n, "numpy"))]
            programs = {n: Program([__file__, "--one", n, str(Path(temporary) / kind)]) for n in names}
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
            for _ in range(parsed.rounds):
                for name, program in programs.items():
                    found[name].append((program.next_number(), program.next_number()))
            for program in programs.values():
                program.close()
            for name, pairs in found.items():
                cpu, wall = (statistics.median(values) for values in zip(*pairs, strict=True))
                print(f"{kind + ', ' + name:28}{cpu:8.1f} us of CPU, {wall:8.1f} us", flush=True)
                results.setdefault(kind, {})[name] = [round(cpu, 1), round(wall, 1)]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
