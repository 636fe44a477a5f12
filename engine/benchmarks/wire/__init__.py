"""Count what a rank sends to the others, in two trainings: `src/train.py`, and a loop by hand.

A folder for each framework: `rank.py` is one rank, and its `__init__.py` names the strategies. `collectives.py` prints the
table, and tests compare the two.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

from train_anywhere.distributed.packages import framework_problem, horovod_problem
from train_anywhere.launch.processes import free_port

SIDES = sorted(folder.parent.name for folder in Path(__file__).parent.glob("*/__init__.py"))
RANKS = 2
STEPS = 20
"""Number of counted steps."""

Sent = dict[str, int]
"""Calls of each operation of a rank by its name, and their bytes as "NAME bytes"."""


def strategies(side: str) -> list[str]:
    """Return the strategies of a framework that the installed packages allow."""
    names: tuple[str, ...] = importlib.import_module(f"benchmarks.wire.{side}").STRATEGIES
    if framework_problem(side):
        return []
    return [name for name in names if name != "horovod" or not horovod_problem(side)]


def count(side: str, kind: str, strategy: str, *words: str) -> dict[str, Sent]:
    """Return what each rank sends in `STEPS` steps ("steps") and for a row of metrics ("row").

    Args:
        kind: "ours", or "raw" for the loop by hand.
        words: more of the command line.

    Raises:
        RuntimeError: a rank fails, or the ranks do not agree.
    """
    program = Path(__file__).parent / side / "rank.py"
    port = str(free_port())
    shared = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), kind, strategy, *words],
            env={**os.environ, **shared, "MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    said = [p.communicate(timeout=240) for p in processes]
    if any(p.returncode for p in processes):
        raise RuntimeError("\n".join(errors for _, errors in said))
    found = [json.loads(output.splitlines()[-1]) for output, _ in said]
    if any(other != found[0] for other in found):
        raise RuntimeError(f"the ranks send other things: {found}")
    return {part: {name: n for name, n in sent.items() if n} for part, sent in found[0].items()}
