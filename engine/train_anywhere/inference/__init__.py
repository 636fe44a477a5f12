"""What comes after training: a run's weights measured, used, exported. It reads run folders, also of runs that train meanwhile.

    from train_anywhere.inference import load_model
    model = load_model("results/latest")

`src/evaluate.py` is the command. `asked.py` checks what was typed; `opening.py` reads a run as one process of this machine would train it;
`command.py` does it here, with `files.py` and `predictions.py`, which write over no file; `job.py` makes a job of it, which
`slurm/submission/evaluation.py` submits. A framework's part is `after.py` in its folder of training.
"""

from train_anywhere.inference.opening import load_model

__all__ = ["load_model"]
