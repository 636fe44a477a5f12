"""Training on anything from a laptop to many nodes of a cluster.

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
remote         the same commands on another machine, over ssh
monitor        heartbeats, the monitor process of a node, the report
search         hyperparameter search with Optuna
program        any program in place of a training, and `log` for its metrics
inference      trained models: evaluate, predict, export
files          files, folders and the terminal
plugins        plugins for Hydra
testing        fixtures for the tests of projects
"""

import os
import signal
import sys
from functools import cache

if sys.version_info < (3, 11):  # noqa: UP036  a project may run from its folder, where pip has compared nothing
    raise ImportError(
        "train_anywhere needs Python 3.11 or newer, and {} is {}.{}; use the project's: `source .venv/bin/activate` "
        "(`make setup` creates it).".format(sys.executable, *sys.version_info[:2])
    )

ENVIRON = {**os.environ}
"""The environment before the engine sets variables for itself, which a program gets."""

IGNORED = frozenset(n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN) - {
    signal.SIGPIPE,  # ignored by Python
    getattr(signal, "SIGXFSZ", 0),
}
"""The signals that were ignored when this process started, such as SIGHUP by nohup."""


@cache
def use_tensorflow() -> None:
    """Choose TensorFlow as the backend of Keras, which reads it when it is imported."""
    asked = os.environ.get("KERAS_BACKEND")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    if asked not in (None, "", "tensorflow"):
        print(
            f"note: KERAS_BACKEND={asked} has no effect: framework=keras trains with TensorFlow.",
            file=sys.stderr,
        )
