"""Use the model of a finished run in a program of your own: print a label and its probability for new images.

    python src/train.py
    python examples/predict.py results/latest

The first command trains on the bundled digits. `python src/evaluate.py RUN --predict-files 'DIR/*.jpg'` predicts for files
without a program of your own.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "engine")]  # a program elsewhere needs these two folders too

from train_anywhere.inference import load_model  # noqa: E402

DIGITS = ROOT / "src/data/digits.npz"
"""1,797 handwritten digits: images uint8 [1797, 8, 8] of 0 to 16, and labels."""


def main(run: str) -> None:
    """Print predictions of a run for five images."""
    model = load_model(run)  # the best checkpoint, on the CPU
    images = np.load(DIGITS)["images"][:5, :, :, np.newaxis]
    predictions = model.predict(images)  # raw rows, or a list of files: prepared like the data of the run
    for label, probabilities in zip(predictions.labels, predictions.probabilities, strict=True):
        print(f"{label}  {probabilities.max():.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
