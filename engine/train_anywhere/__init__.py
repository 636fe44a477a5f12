"""Training on anything from a laptop to many nodes of a cluster. Projects import this package and do not edit it.

commands       the commands behind `src/*.py`
config         from a command line to one typed, checked configuration
features       optional features of a run, a folder each
slurm          batch scripts, submissions, the scheduler, the state of jobs
launch         start a run on this machine; a rank starts in `launch.rank`
distributed    the rank of this process, and the addresses of the others
data           data sets as pipelines of both frameworks
training       the loops: `lightning`, `keras`, and their shared code
checkpoints    checkpoint files, independent of frameworks
runs           run folders
monitor        heartbeats, the monitor process of a node, the report
search         hyperparameter search with Optuna
inference      trained models: evaluate, predict, export
files          files, folders and the terminal
plugins        plugins for Hydra
testing        fixtures for the tests of projects
"""

import os
import sys
from functools import cache

if sys.version_info < (3, 11):  # noqa: UP036  a project may run from its folder, where pip has compared nothing
    raise ImportError(
        "train_anywhere needs Python 3.11 or newer, and {} is {}.{}; use the project's: `source .venv/bin/activate` "
        "(`make setup` creates it).".format(sys.executable, *sys.version_info[:2])
    )

ASKED_BACKEND = os.environ.get("KERAS_BACKEND") or "tensorflow"
# before any other import: Keras reads its backend from the environment when it is imported
os.environ["KERAS_BACKEND"] = "tensorflow"


@cache
def note_backend() -> None:
    """Print once that the user's choice of a backend has no effect."""
    if ASKED_BACKEND != "tensorflow":
        print(
            f"note: KERAS_BACKEND={ASKED_BACKEND} has no effect: framework=keras trains with TensorFlow.",
            file=sys.stderr,
        )
