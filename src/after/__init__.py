"""What comes after training: a run's weights measured, used, exported. It reads run folders, also of runs that train meanwhile.

    from src.after import load_model
    model = load_model("results/latest")

`src/evaluate.py` is the command. `opening.py` reads a run as one process of this machine would train it, `results.py` writes files and
never over another one; the frameworks' parts are `after.py` in src/training/lightning and src/training/keras.
"""

from src.after.opening import load_model

__all__ = ["load_model"]
