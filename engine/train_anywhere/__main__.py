"""Run a command of the engine in a project: `python -m train_anywhere VERB`.

    doctor    check this machine or a cluster, down to a job of two steps
    fetch     download the weights and data of a run on a login node
    index     write the index of a folder of shards
    report    write the page of a run or a sweep
    scaling   compare numbers of devices, strategies and launchers

`python -m train_anywhere VERB --help` explains one. Trainings start with `python src/train.py`.
"""

import importlib
import sys

from train_anywhere.errors import ProjectError

VERBS = ("doctor", "fetch", "index", "report", "scaling")


def main() -> int:
    """Run the command that the first argument names; return the exit code."""
    verb = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if verb in ("-h", "--help"):
        print(__doc__)
        return 0
    if verb not in VERBS:
        print(f"error: '{verb}' is not a command; use one of {', '.join(VERBS)}.", file=sys.stderr)
        return 2
    try:
        from train_anywhere.files import ROOT
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code

    sys.path[0] = str(
        ROOT
    )  # `-m` puts the current folder there; the project's modules are found from any folder below
    sys.argv[:2] = [f"train_anywhere {verb}"]
    return int(importlib.import_module(f"train_anywhere.commands.{verb}").main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
