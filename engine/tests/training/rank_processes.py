"""Processes that are the ranks of a run."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence


def run_ranks(
    commands: Sequence[Sequence[str]], places: Sequence[Mapping[str, str]], code: int = 0
) -> list[str]:
    """Run Python with the arguments of each rank and the variables of its place. Return what each rank printed."""
    ranks = [
        subprocess.Popen(
            [sys.executable, *words], env={**os.environ, "OMP_NUM_THREADS": "1", **place},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for words, place in zip(commands, places, strict=True)
    ]  # fmt: skip
    try:
        output = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [code] * len(ranks), "\n".join(output)
    return output
