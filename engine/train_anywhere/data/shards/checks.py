"""Find the shards of a data set and the split of each, by their names, and check them before a run. Needs no numpy."""

import re
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from train_anywhere.config.paths import resolve_node_path
from train_anywhere.data.known import Known
from train_anywhere.data.listing import walk
from train_anywhere.errors import DataError

KINDS = (".tar", ".parquet", ".jsonl")
"""Ends of the names of shards."""

MISSING_PYARROW = "*.parquet files need the package pyarrow, which is not installed; install it: python -m pip install pyarrow"

_HELD_OUT = re.compile(
    r"(?<![a-z])(?<!train[-_])(?:(test)(?:ing|s)?|(?:val(?:id|idation)?|dev|eval(?:uation)?))(?![a-z])"
)


class ShardFiles(NamedTuple):
    """The kind of the shards below a folder, one of `KINDS`, and the names of the files of each split, relative to the folder."""

    kind: str
    splits: dict[str, list[str]]


def list_shards(folder: Path) -> ShardFiles:
    """Return the sorted shards below a folder: `val/x.tar`, `a-val-x.tar` and the like are not for training.

    Raises:
        DataError: there are none to train on, several kinds, compressed ones, or the folder can't be listed.
    """
    kinds, splits = set(), dict[str, list[str]]()
    for path, sort in walk(str(folder)):
        packed = re.search(r"(\.tgz|\.(?:tar|jsonl)\.(?:gz|bz2|xz|zst))$", path, re.IGNORECASE)
        if packed:
            unpack = {"bz2": "bunzip2", "xz": "unxz", "zst": "unzstd --rm"}.get(
                packed[1].lower().rpartition(".")[2], "gunzip"
            )
            raise DataError(
                f"{path} is compressed, so its samples can't be read by index; unpack such files once: "
                f"find {shlex.quote(str(folder))} -name '*{packed[1]}' -exec {unpack} {{}} +"
            )
        if path.lower().endswith(KINDS) and sort != "hidden":
            if sort != "file":
                raise DataError(f"{path} is not a file ({sort}); restore it, or delete it.")
            name = path[len(str(folder)) :].lstrip("/")
            kinds.add(Path(name).suffix.lower())
            parts = [m[1] or "val" for part in name.lower().split("/") if (m := _HELD_OUT.search(part))]
            splits.setdefault(parts[0] if parts else "train", []).append(name)
    if len(kinds) != 1 or "train" not in splits:
        have = (
            f"shards of {' and '.join(splits)} only, such as {splits.popitem()[1][0]}"
            if len(kinds) == 1
            else f"{' and '.join(kinds) or 'no'} shards"
        )
        raise DataError(
            f"data.dir={folder} has {have}; use data.dir=FOLDER with *{', *'.join(KINDS)} of one kind to train on."
        )
    return ShardFiles(kinds.pop(), {split: sorted(names) for split, names in splits.items()})


def parse_size(text: str) -> int:
    """Return the bytes of a size such as 1GiB, 500MB or 4096. Raises DataError."""
    found = re.fullmatch(r"(\d{1,15})\s*([KMGT]?)(i?)B?", str(text), re.IGNORECASE)
    if not found:
        raise DataError(f"data.cache={text} is not a size; use data.cache=1GiB, for example.")
    return int(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2].upper() or " ")


def shards(
    dir: str,
    cache: str,
    look: bool,
    installed_here: bool,
    val_fraction: float | None = None,
    test_fraction: float | None = None,
    columns: Mapping[str, str] | None = None,
) -> Known:
    """Return why the shards can't be read; `installed_here` is whether the run uses the packages of this process."""
    problems, fractions = [], {"val": val_fraction or 0, "test": test_fraction or 0}
    parse_size(cache)
    if columns is not None and not (
        isinstance(columns, Mapping) and all(isinstance(v, str) for v in columns.values())
    ):
        problems.append(
            f"data.columns={columns} does not name fields; use data.columns='{{image: jpg, label: cls}}'."
        )
    if sum(fractions.values()) >= 1:
        problems.append(
            f"data.val_fraction={val_fraction:g} and data.test_fraction={test_fraction:g} leave nothing to train on; use a sum below 1."
        )
    if look:
        found = list_shards(Path(resolve_node_path(dir)))
        if found.kind == ".parquet" and installed_here and not find_spec("pyarrow"):
            problems.append(MISSING_PYARROW)
        problems += [
            f"data.dir={dir} has shards of {split}, such as {found.splits[split][0]}; leave out data.{split}_fraction={share:g}."
            for split, share in fractions.items()
            if share and split in found.splits
        ]
    return Known(problems=tuple(problems))
