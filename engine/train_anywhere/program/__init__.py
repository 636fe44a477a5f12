"""Any program in place of a training: `python src/run.py -- script.py --its --arguments`.

program_environment  the command, environment and output of a program
program_metrics      the numbers that the program writes, for metrics.csv, the progress and the best value
run_program          one rank: starts the program, passes signals on, copies its files (files.copy_files), records how it ended

`log` is for programs, so this module imports nothing of the engine.
"""

import json
import os
from typing import SupportsFloat

__all__ = ["log"]


def log(step: int, **values: SupportsFloat) -> None:
    """Log metrics of a step, such as `log(10, loss=0.5, **{"val/acc": 0.9})`.

    Only rank 0 of a program that `src/run.py` has started writes; elsewhere the call does nothing.

    Args:
        step: number of the step, from 0 or 1.
        values: numbers, or tensors of one element.
    """
    path = os.environ.get("TRAIN_METRICS")
    if not path or os.environ.get("RANK", "0") != "0":
        return
    numbers = {name: float(getattr(value, "item", lambda v=value: v)()) for name, value in values.items()}
    row = {"step": int(step), **numbers}
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
