"""Evaluation, prediction, generation and export, also of runs that are still training.

    from train_anywhere.inference import load_model
    model = load_model("results/latest")
    model.predict(["a.jpg", "b.jpg"]).labels

predictor        predicts for new files and arrays: what `load_model` returns
trained_model    opens a run folder and loads a checkpoint into its model; checks the arguments of `src/evaluate.py`
evaluate_run     runs an evaluation here, and writes its files
"""

from train_anywhere.inference.trained_model import load_model

__all__ = ["load_model"]
