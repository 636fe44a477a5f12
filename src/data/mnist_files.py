"""MNIST's four files: their names, whether they exist, how many images their headers announce."""

from pathlib import Path

from src.data.idx import read_header
from train_anywhere.errors import DataError

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)

# The file names and MD5 sums that other readers of MNIST use too.
CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}


def raw(data_dir: Path) -> Path:
    """The folder with the four files."""
    return data_dir / "MNIST" / "raw"


def missing(folder: Path) -> list[str]:
    """The .gz names of the files that exist neither packed nor unpacked."""
    return [
        name
        for name in CHECKSUMS
        if not (folder / name).exists() and not (folder / name).with_suffix("").exists()
    ]


def refuse_missing(folder: Path) -> None:
    """Raise DataError if files are missing: what to put where, or the key that fetches them."""
    if missing(folder):
        raise DataError(f"{what_to_put(folder)}, or use data.download=true to fetch them.")


def what_to_put(folder: Path) -> str:
    """The beginning of a sentence about missing files."""
    return (
        f"MNIST is not complete: put {', '.join(missing(folder))} (packed, or unpacked without .gz) into "
        f"{folder.absolute()}, copied from a machine that has them or from {MIRRORS[0]}"
    )


def present(plain: Path) -> Path:
    """The unpacked file if it exists, else the packed one."""
    return plain if plain.exists() else plain.with_name(plain.name + ".gz")


def held_out(length: int) -> int:
    """How many images of the training files are used for validation."""
    return max(1, length // 12)


def train_length(folder: Path) -> int:
    """Number of training images, from the headers of the files. Raises DataError if a file is missing or has none."""
    refuse_missing(folder)
    counts = [
        read_header(present(folder / name[: -len(".gz")]), int(name.split("idx")[1][0]))[0]
        for name in CHECKSUMS
    ]
    return counts[0] - held_out(counts[0])
