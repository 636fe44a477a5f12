"""Trained models: measured, used, exported. Run folders are only read, also those of runs that train meanwhile.

    from train_anywhere.inference import load_model
    model = load_model("results/latest")

request          what was typed for `src/evaluate.py`, checked
opening          a run folder, a checkpoint, the model with its weights
evaluate_run     does it here; `evaluation_job` as a job
predictions      files of predictions; `output_files` names files that do not exist yet
"""

from train_anywhere.inference.opening import load_model

__all__ = ["load_model"]
