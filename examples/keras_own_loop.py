"""A loop of `train_on_batch` in place of `run.fit`, here or in a job, on one process or several.

    python src/train.py framework=keras train=examples.keras_own_loop.train model=mlp

The calls of `run` are explained in docs/how-to/own-loop.md.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from train_anywhere.training.order import Training


def train(run: "Training") -> None:
    """Train the model of `task=` for 60 steps, and test it."""
    strategy = run.make_trainer()
    data = run.open_data()
    model = run.make_model(data)
    variables = [*model.variables, *model.optimizer.variables]
    if run.newest:  # the folder of the newest checkpoint of this run
        with np.load(run.newest / "state.npz") as state:
            for variable, value in zip(variables, state.values(), strict=True):
                variable.assign(value)

    def save(folder: Path) -> None:
        np.savez(folder / "state.npz", *(np.array(variable) for variable in variables))

    for step, batch in zip(run.steps(60, save, every=20), run.batches(), strict=False):
        logs = model.train_on_batch(*batch, return_dict=True)
        if step % 5 == 0:
            run.log(step, {"train/loss": logs["loss"]})
    run.test(strategy, model, data)
