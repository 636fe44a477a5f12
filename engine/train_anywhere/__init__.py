"""Training from a laptop to many nodes of a cluster: the package that projects import and do not edit.

commands       what `src/*.py` call
config         from a command line to one typed, checked configuration
features       optional features of a run, a folder each
slurm          batch scripts, submissions, the scheduler, the state of jobs
launch         start a run on this machine; a rank starts in `launch.rank`
distributed    which rank this is, and where the others are
data           data sets as pipelines of both frameworks
training       the loops: `lightning`, `keras`, and what they share
checkpoints    files of checkpoints, without a framework
runs           run folders
monitor        heartbeats, the side process of a node, the report
search         Optuna
inference      trained models: evaluate, predict, export
files          files, folders and the terminal
plugins        what Hydra loads
testing        fixtures for the tests of projects
"""

import os
import sys
from functools import cache

from train_anywhere.renamed import OldNames

sys.meta_path.append(OldNames())

ASKED_BACKEND = os.environ.get("KERAS_BACKEND") or "tensorflow"
# Keras reads its backend from the environment when it is imported, so it is chosen before anything else
os.environ["KERAS_BACKEND"] = "tensorflow"


@cache
def note_backend() -> None:
    """Print once that the backend which the user chose is not used."""
    if ASKED_BACKEND != "tensorflow":
        print(
            f"note: KERAS_BACKEND={ASKED_BACKEND} has no effect: framework=keras trains with TensorFlow.",
            file=sys.stderr,
        )
