"""Evaluation, prediction, generation and export, also of runs that are still training.

    from train_anywhere.inference import load_model
    model = load_model("results/latest")
    model.predict(["a.jpg", "b.jpg"]).labels

request          checks the arguments of `src/evaluate.py`
predictor        predicts for new files and arrays: what `load_model` returns
trained_model    opens a run folder and loads a checkpoint into its model
evaluate_run     runs an evaluation here
output_files     chooses names of new files; writes files of predictions
"""

from train_anywhere.inference.trained_model import load_model

__all__ = ["load_model"]
