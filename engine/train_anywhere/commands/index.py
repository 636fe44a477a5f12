"""Index the shards of a data set for data=shards: where each sample is.

    python -m train_anywhere index DIR

A run does it by itself before its ranks connect. Do it earlier to find incomplete files on a machine without GPUs.
"""

import argparse

from train_anywhere.files import WORK
from train_anywhere.files.root import shell_folder
from train_anywhere.files.terminal.fit import FittedHelp
from train_anywhere.files.terminal.printable import printable_output
from train_anywhere.launch.command import run_command


def main(arguments: list[str] | None = None) -> int:
    """Write the index; return 0, or `REFUSED` after one message."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=FittedHelp)
    parser.add_argument("dir", metavar="DIR", help="folder of *.tar, *.parquet or *.jsonl")
    about = "the index is kept in .cache of this folder (%(default)s)"
    parser.add_argument("--results", default=WORK / "results", help=about)
    parsed = parser.parse_args(arguments)

    def write() -> int:
        from train_anywhere.data.shards.index import open_index

        index = open_index(shell_folder() / parsed.dir, shell_folder() / parsed.results / ".cache")
        files = [f"{split + ':':<15}{len(names):,} shards" for split, names in index.shards.splits.items()]
        print("\n".join(index.info["notes"] + files))
        print(f"{'Samples:':<15}{index.starts[-1]:,}\n{'Index:':<15}{index.place}")
        return 0

    with printable_output():  # names in tar files may have any bytes
        return run_command(write, overrides=False)
