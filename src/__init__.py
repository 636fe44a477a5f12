"""The project: its models, tasks and data sets."""

import sys

try:
    import train_anywhere  # noqa: F401  sets the backend of Keras
except ModuleNotFoundError as error:
    if error.name != "train_anywhere":
        raise
    print("error: train_anywhere is not installed: run `make setup`.", file=sys.stderr)
    sys.exit(2)
