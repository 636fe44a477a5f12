"""Training from a laptop to many nodes of a cluster: the installable part, which projects import and do not edit."""

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
