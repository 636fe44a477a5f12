"""One rank of a Keras run, for tests: trains, then writes down what this rank itself has.

python engine/tests/training/keras/strategies/ranks.py RUN OUT [STEP]     STEP: send this process SIGUSR1 after that step
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np

sys.path[:1] = [str(Path(__file__).resolve().parents[5]), str(Path(__file__).resolve().parents[5] / "engine")]

from train_anywhere.distributed.discover import discover  # noqa: E402
from train_anywhere.job.rank_process import RankProcess, Stop  # noqa: E402
from train_anywhere.runs.folder import open_run  # noqa: E402
from train_anywhere.runs.reopen.frozen import load_frozen  # noqa: E402


def main(folder: str, out: str, signal_after: str | None = None) -> None:
    """Train. Write this rank's weights to OUT/<rank>.npz."""
    from train_anywhere.training.keras import run as side
    from train_anywhere.training.keras.loop.callbacks import TrainingCallback

    after_step = TrainingCallback.on_train_batch_end

    def on_train_batch_end(self: TrainingCallback, *arguments: object) -> None:
        if signal_after and self.position.step + 1 == int(signal_after):
            os.kill(os.getpid(), signal.SIGUSR1)
        after_step(self, *arguments)

    def write_down(self: side.KerasTraining, *_: object) -> None:
        module = self._module
        np.savez(
            Path(out) / f"{topology.rank}.npz",
            **{v.path: v.numpy() for v in module.model.trainable_variables + module.moving_statistics()},
        )

    TrainingCallback.on_train_batch_end, side.KerasTraining.test = on_train_batch_end, write_down
    run, topology = open_run(folder), discover()
    outcome = side.train(load_frozen(run), RankProcess(run, topology, Stop().install()))
    print(outcome.state, outcome.step, outcome.epoch)


if __name__ == "__main__":
    main(*sys.argv[1:])
