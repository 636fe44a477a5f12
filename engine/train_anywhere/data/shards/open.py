"""Open the shards of a folder as the splits of a data set: the target of data=shards."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from train_anywhere.config.limits import Range
from train_anywhere.config.paths import AbsoluteFolder, resolve_node_path
from train_anywhere.data.array_data import leaves
from train_anywhere.data.dataset import Splits
from train_anywhere.data.order.assignment import BlockOrder
from train_anywhere.data.shards.checks import parse_size
from train_anywhere.data.shards.index import AGREED, KEY, Index, open_index
from train_anywhere.data.shards.rows import LABELS, ShardRows, find_columns
from train_anywhere.data.shards.sources import Source
from train_anywhere.errors import DataError
from train_anywhere.files.node_disk import Staged, as_it_is

MAX_NOTES = 3
"""The most notes about shards that a run prints."""

Fraction = Annotated[float, Range(above=0, below=1)]


def open_shards(
    dir: AbsoluteFolder,
    index: AbsoluteFolder,
    seed: int,
    columns: Mapping[str, str] | None = None,
    decode: Any = None,
    val_fraction: Fraction | None = None,
    test_fraction: Fraction | None = None,
    order: Literal["blocks", "full", "shards"] = "blocks",
    window: Annotated[int, Range(at_least=1, at_most=1_048_576)] = 16,
    cache: str = "1GiB",
    classes: Annotated[int, Range(at_least=1, at_most=2_147_483_647)] | None = None,
    other_data: bool = False,
    staged: Staged = as_it_is,
) -> Splits:
    """Open the shards below a folder; configs/data/shards.yaml explains the arguments.

    Raises:
        DataError: a shard is damaged, incomplete or lacks a column, or a split has no samples.
    """
    folder = Path(resolve_node_path(dir))
    found, limit = open_index(folder, Path(index)), parse_size(cache)
    notes, fields = list(found.info["notes"]), sorted(found.fields)
    if (more := len(notes) - MAX_NOTES) > 0:
        others = f"{more:,} other shards have such notes: python -m train_anywhere index {shlex.quote(dir)}"
        notes[MAX_NOTES:] = [others]
    if not fields:
        raise DataError(f"data.dir={folder} has no samples with fields; add some, or use another folder.")
    named = find_columns(columns, fields)
    needed = sorted({name for names in named.values() for name in names if name in fields})
    # a batch may lie in two windows, and each of their row groups is needed again and again
    fitting = max(1, limit // (2 * int(found.units[:, 3].max(initial=1))))
    if found.shards.kind == ".parquet" and order != "full" and fitting < window:
        notes.append(f"data.window={fitting} instead of {window}, so that row groups fit data.cache={cache}.")
        window = fitting
    if order == "shards":
        notes.append("data.order=shards: resume in the middle of an epoch on the same number of ranks.")
    near, sets = staged(folder), dict[str, ShardRows]()
    for split, rows in _split(found, val_fraction, test_fraction).items():
        if not len(rows):
            raise DataError(f"data.dir={folder} has no samples of {split}; add some, or use other fractions.")
        blocks = BlockOrder(np.searchsorted(rows, found.starts), window, order == "shards")
        source = Source(found, near, needed, limit)
        sets[split] = ShardRows(source, named, decode, seed, rows, None if order == "full" else blocks)
        sets[split].check_columns()
    names = {split: one.row_names for split, one in sets.items()}
    facts = {**_facts(sets["train"], found, classes), "row_names": names}
    return Splits(sets["train"], sets.get("val"), sets.get("test", sets.get("val")), facts, tuple(notes))


def index_ahead(given: Mapping[str, Any], before: Any, pulse: Callable[[], None]) -> dict[str, Any]:
    """Index the shards that the arguments of `open_shards` name, before the ranks connect; return what run.json records.

    `before` is what it recorded of an earlier attempt, if any.
    Raises DataError: the index can't be made, or a resumed run would train on other data.
    """
    folder = Path(resolve_node_path(given["dir"]))
    AGREED.pop(folder, None)
    index = open_index(folder, Path(given["index"]), pulse)
    facts: dict[str, Any] = {
        "index": (key := index.place.name[-KEY:]),
        "folder": str(folder),
        "samples": int(index.starts[-1]),
        "files": {name: size for name, size, _ in index.info["files"]},
    }
    AGREED[folder] = key
    if isinstance(before, dict) and before.get("index") != facts["index"] and not given.get("other_data"):
        old, new = before.get("files") or {}, facts["files"]
        differ = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        raise DataError(
            f"data.dir={facts['folder']} differs from the shards that this run was trained on ({before.get('samples')} samples, now "
            f"{facts['samples']}; {', '.join(differ[:3]) or 'times of files'}); put them back, or use data.other_data=true."
        )
    return facts


def _split(index: Index, val_fraction: float | None, test_fraction: float | None) -> dict[str, np.ndarray]:
    """Return the rows of each split: by the names of the shards, and of train by checksums of keys (of lines, of Parquet's rows)."""
    files = np.repeat(index.units[:, 0], index.units[:, 2])
    numbers = {name: n for n, (name, *_) in enumerate(index.info["files"])}
    found = {
        split: np.flatnonzero(np.isin(files, [numbers[name] for name in names]))
        for split, names in index.shards.splits.items()
    }
    share, low = index.array("hash")[found["train"]] / 2**32, 0.0
    everything = found["train"]
    for split, fraction in (("test", test_fraction), ("val", val_fraction)):
        if fraction:
            found[split] = everything[(share >= low) & (share < low + fraction)]
            low += fraction
    return {**found, "train": everything[share >= low]}


def _facts(train: ShardRows, index: Index, classes: int | None) -> dict[str, Any]:
    """Return the shape of the first value of a row, the number of classes, and the `facts` of the user's function."""
    first = leaves(train.read(np.array([0]), 0, False))
    facts: dict[str, Any] = {"shape": first[0].shape[1:]}
    label = next((n for column, names in train.columns.items() for n in names if {n, column} & {*LABELS}), "")
    top, place = index.info["largest"].get(label, (-1, ""))
    samples = int(index.starts[-1])
    if not classes and top >= samples:
        facts["unknown"] = (
            f"{place} has the label {top:,}, and there are {samples:,} samples: correct it, or name the number of classes with "
            "data.classes=N"
        )
    elif known := classes or top + 1:
        facts["classes"] = facts["outputs"] = known
    return facts | dict(getattr(train.function, "facts", {}))
