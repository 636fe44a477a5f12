"""Streams of other libraries with the 240 images of `streams.py`, 24 rows per global batch."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

from engine.tests.data.shard_files import image, write_shard
from engine.tests.training.lightning.streams import FACTS, Shards
from train_anywhere.data import Splits

LIBRARIES = ("datasets", "webdataset", "litdata", "streaming", "torchdata")
SHARDS = [range(first, first + 10) for first in range(0, 240, 10)]


def row(key: int) -> dict[str, Any]:
    """An image and its label."""
    return {"image": image(key), "label": key % 7}


def write(library: str, folder: Path) -> None:
    """Write the files of a library."""
    if library == "webdataset":
        for number, keys in enumerate(SHARDS):
            write_shard(folder / f"{number:02}.tar", keys)
    if library == "litdata":
        from litdata import optimize

        optimize(fn=row, inputs=list(range(240)), output_dir=str(folder), chunk_size=10, num_workers=1)
    if library == "streaming":
        from streaming import MDSWriter

        columns = {"image": "ndarray:float32:4,4,1", "label": "int"}
        with MDSWriter(out=str(folder), columns=columns, size_limit=1000) as writer:
            for key in range(240):
                writer.write(row(key))


def collate(rows: list[Any]) -> Any:
    """A batch of images and labels."""
    found = [(r["image"], r["label"]) if isinstance(r, dict) else r for r in rows]
    images = [torch.from_numpy(np.asarray(one, np.float32).reshape(4, 4, 1)) for one, _ in found]
    return default_collate(list(zip(images, (int(label) for _, label in found), strict=True)))


def rows_of(shards: list[int]) -> Iterator[dict[str, Any]]:
    """The rows of some shards, for Hugging Face."""
    for shard in shards:
        yield from map(row, SHARDS[shard])


def open_library(library: str) -> Splits:
    """The loader of a library, over the files in $STREAMS; with `.own` behind its name, each rank takes its part here."""
    rank, ranks, own = (
        int(os.environ.get("RANK", "0")),
        int(os.environ.get("WORLD_SIZE", "1")),
        ".own" in library,
    )
    library = library.partition(".")[0]
    folder, each = os.environ["STREAMS"], 24 // int(os.environ.get("WORLD_SIZE", "1"))
    loader: Any = DataLoader
    if library == "datasets":
        from datasets import IterableDataset
        from datasets.distributed import split_dataset_by_node

        stream: Any = IterableDataset.from_generator(rows_of, gen_kwargs={"shards": list(range(24))})
        stream = split_dataset_by_node(stream, rank, ranks) if own else stream
    elif library == "webdataset":
        from webdataset import WebDataset

        files = sorted(map(str, Path(folder).glob("*.tar")))
        files = files[rank::ranks] if own else files
        stream = WebDataset(files, shardshuffle=False).decode().to_tuple("npy", "cls")
    elif library == "litdata":
        from litdata import StreamingDataLoader, StreamingDataset

        stream, loader = StreamingDataset(folder), StreamingDataLoader
    elif library == "streaming":
        from streaming import StreamingDataset

        stream = StreamingDataset(local=folder, batch_size=each, shuffle=False)
    else:
        from torchdata.stateful_dataloader import StatefulDataLoader

        stream, loader = Shards(), StatefulDataLoader
    return Splits(loader(stream, batch_size=each, collate_fn=collate), None, None, FACTS)
