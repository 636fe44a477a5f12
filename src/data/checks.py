"""Checks of the data sets before a run starts, which `_check_` names in configs/data.

They run where a job is submitted, so neither they nor their imports may load numpy or a framework.
"""

import os
from itertools import islice
from pathlib import Path

from train_anywhere.config import resolve_node_path, write_problem
from train_anywhere.data import Known, is_archive
from train_anywhere.data.readers.class_folders import class_folders
from train_anywhere.data.readers.documents import read_documents, split_sizes
from train_anywhere.data.readers.mnist_files import missing_files, raw_folder, train_length
from train_anywhere.errors import DataError

LABELS = ("classes", "outputs")
"""Facts of a data set with classes, besides its shape, that are known only after it is read."""


def digits() -> Known:
    """Return the number of training images, of 1,797 in all, and their shape."""
    return Known(1259, {"shape": (8, 8, 1), "unit": "images"}, later=LABELS)


def mnist(dir: str, download: bool, look: bool) -> Known:
    """Return number and shape of the training images, from their file's header if `look`.

    `look` is whether `dir` can be read on this machine.

    Raises:
        DataError: files are missing, or their headers are wrong.
    """
    length = _mnist_length(raw_folder(Path(resolve_node_path(dir))), download) if look else None
    return Known(length, {"shape": (28, 28, 1), "unit": "images"}, later=LABELS)


def _mnist_length(folder: Path, download: bool) -> int | None:
    if not (download and missing_files(folder)):
        return train_length(folder)
    if words := write_problem(folder):
        raise DataError(f"data.dir: MNIST can't be downloaded into {folder}: {words}; use data.dir=FOLDER.")
    return None


def imagefolder(
    dir: str,
    image_size: int,
    channels: int,
    look: bool,
    stage: bool,
    val_fraction: float | None = None,
    test_fraction: float | None = None,
) -> Known:
    """Return the shape of the images. Raise DataError for a folder that can't be read."""
    folder = Path(resolve_node_path(dir)) if look else Path()
    packed = look and is_archive(folder)
    if packed and not stage:
        raise DataError(
            f"data.dir={dir} is an archive, which has to be unpacked before it is read; use data.stage=true."
        )
    if test_fraction is not None and val_fraction is None:
        raise DataError(f"data.test_fraction={test_fraction} needs data.val_fraction too.")
    if look and not packed:
        splits = ("train", "val") if val_fraction is None else ("",)
        names = [name for split in splits for name in class_folders(folder / split)]
        if val_fraction is not None and {*names} <= {"train", "val", "test"}:
            raise DataError(
                f"data.dir={dir} has the folders {', '.join(names)}, which would be classes; use data.val_fraction=null."
            )
    facts = {"shape": (image_size, image_size, channels), "unit": "images"}
    return Known(None, facts, later=(*LABELS, "class_names", "row_names"))


def friedman(length: int) -> Known:
    """Return the length of the table, its ten columns and its one output."""
    return Known(length, {"shape": (10,), "outputs": 1, "unit": "rows"}, later=())


def text(
    dir: str | None,
    files: list[str],
    text_key: str,
    cache: str,
    tokenizer: str,
    vocabulary: int,
    val_fraction: float,
    test_fraction: float,
    length: int,
    look: bool,
) -> Known:
    """Return what is known of the rows before they are read, and problems of the files."""
    problems = []
    sizes = {"bytes": 257, "bpe": vocabulary}
    if val_fraction + test_fraction >= 1:
        problems.append(
            f"data.val_fraction={val_fraction:g} and data.test_fraction={test_fraction:g} leave nothing to train on; use a sum below 1."
        )
    elif look and dir is not None:
        try:
            documents = read_documents(Path(resolve_node_path(dir)), files, text_key)
            if (found := len(list(islice(documents, 3)))) < 3:
                split_sizes(found, val_fraction, test_fraction)
        except DataError as error:
            problems.append(str(error))
    if look and tokenizer not in sizes and not os.path.isfile(resolve_node_path(tokenizer)):
        problems.append(f"data.tokenizer={tokenizer} is not bytes, bpe or a tokenizer.json file.")
    ready = not look or cache.startswith("$") or any(Path(cache).glob("tokens-*"))
    if words := None if ready else write_problem(Path(cache)):
        problems.append(f"data.cache: tokens can't be written to {cache}: {words}; use data.cache=FOLDER.")
    facts = {"length": length, "unit": "tokens", "units_per_row": length}
    if tokenizer in sizes:
        facts["vocabulary"] = sizes[tokenizer]
    return Known(None, facts, tuple(problems), ("vocabulary", "text"))
