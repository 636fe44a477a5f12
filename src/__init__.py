"""The project: its models, tasks and data sets. `main` runs a command of the engine."""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENGINE = str(ROOT / "engine")  # without engine/: the installed package
if ENGINE not in sys.path:
    sys.path.insert(1, ENGINE)

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


def main(command: str) -> None:
    """Run a command of the engine, and exit with its code."""
    here = str(ROOT / "src")  # Python adds a script's folder, whose modules would hide others
    sys.path[:] = [folder for folder in sys.path if folder != here]
    module = importlib.import_module(f"train_anywhere.commands.{command}")
    sys.exit(module.run() if hasattr(module, "run") else module.main(sys.argv[1:]))
