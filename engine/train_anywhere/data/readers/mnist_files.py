"""The four files of MNIST: their names, which are missing, and the number of images by their headers."""

from pathlib import Path

from train_anywhere.data.readers.idx import read_header
from train_anywhere.errors import DataError

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)

# File names and MD5 sums, the same as in other readers of MNIST.
CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}


def raw_folder(data_dir: Path) -> Path:
    """Return the folder of the four files."""
    return data_dir / "MNIST" / "raw"


def missing_files(folder: Path) -> list[str]:
    """Return the .gz names of the files that exist neither packed nor unpacked."""
    return [
        name
        for name in CHECKSUMS
        if not (folder / name).exists() and not (folder / name).with_suffix("").exists()
    ]


def refuse_missing(folder: Path) -> None:
    """Raise DataError if files are missing, with what to put where and which key downloads them."""
    if missing_files(folder):
        raise DataError(f"{missing_message(folder)}, or use data.download=true to download them.")


def missing_message(folder: Path) -> str:
    """Return the first part of a sentence about missing files."""
    return (
        f"MNIST is not complete: put {', '.join(missing_files(folder))} (packed, or unpacked without .gz) into "
        f"{folder.absolute()}, copied from a machine that has them or from {MIRRORS[0]}"
    )


def existing_file(plain: Path) -> Path:
    """Return the unpacked file if it exists, else the packed one."""
    return plain if plain.exists() else plain.with_name(plain.name + ".gz")


def validation_length(length: int) -> int:
    """Return the number of images of the training files that are used for validation."""
    return max(1, length // 12)


def train_length(folder: Path) -> int:
    """Return the number of training images, from the headers; raise DataError if a file is missing or has a wrong header."""
    refuse_missing(folder)
    counts = [
        read_header(existing_file(folder / name[: -len(".gz")]), int(name.split("idx")[1][0]))[0]
        for name in CHECKSUMS
    ]
    return counts[0] - validation_length(counts[0])
