"""The project: its models, tasks and data sets."""

import sys
from pathlib import Path

ENGINE = str(Path(__file__).resolve().parents[1] / "engine")
if ENGINE not in sys.path:
    sys.path.insert(1, ENGINE)  # for python -m src.train

try:
    import train_anywhere  # noqa: F401
except ImportError as error:
    if error.name not in ("train_anywhere", None):
        raise
    print(
        "error:",
        "train_anywhere is not installed: run `make setup`." if error.name else error,
        file=sys.stderr,
    )
    sys.exit(2)
