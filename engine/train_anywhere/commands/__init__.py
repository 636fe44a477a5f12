"""The commands of a project, each a module: scripts in src/ and slurm/ call some, `python -m train_anywhere VERB` the others.

A Python that lacks a package that the engine requires, such as the system's, gets one message.
"""

import sys
from types import TracebackType

__all__ = ["doctor", "evaluate", "fetch", "index", "jobs", "new_cluster", "run", "scaling", "train"]

PACKAGES = {"hydra", "omegaconf", "yaml", "jinja2", "pygal", "rich", "psutil"}
"""Modules of the packages that pip installs with the engine."""


def explain_missing_package(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print one message and exit with 2 if a package of the engine is missing; else print the traceback, as Python does."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in PACKAGES:
        sys.__excepthook__(kind, error, trace)
        return
    print(
        f"error: {name} is not installed for this Python ({sys.executable}); use the project's: `source .venv/bin/activate` "
        "(`make setup` creates it).",
        file=sys.stderr,
    )
    sys.exit(2)


sys.excepthook = explain_missing_package
