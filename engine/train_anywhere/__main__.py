"""Run a command of the engine: `python -m train_anywhere VERB`.

    doctor       check this machine or a cluster, down to a job of two steps
    fetch        download the weights and data of a run on a login node
    index        write the index of a folder of shards
    new-cluster  write a preset for the cluster whose login node this is
    scaling      compare numbers of devices, strategies and launchers
    status, list, best, diff, plot, report, logs, save, debug, shell, profile, cancel, resubmit, pull, prune
                 show and control runs, as `python src/jobs.py` does

`python -m train_anywhere VERB --help` explains one. Trainings start with `python src/train.py`. For programs without a project, the runs
are those of `hydra/launcher=anywhere` in the current repository: its folder results/.
"""

import importlib
import sys

from train_anywhere.errors import ConfigError, ProjectError

JOBS = (
    "status", "list", "best", "diff", "plot", "report", "logs", "save", "debug", "shell", "profile", "cancel", "resubmit", "pull", "push",
    "prune",
)  # fmt: skip
"""Verbs of `src/jobs.py`."""
OF_PROJECTS = ("doctor", "fetch", "index", "scaling")
VERBS = (*OF_PROJECTS, "new-cluster", *JOBS)
MODULES = {"new-cluster": "new_cluster", "submit": "submit_program"}


def main() -> int:
    """Run the command that the first argument names; return the exit code."""
    verb = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if verb in ("-h", "--help"):
        print(__doc__)
        return 0
    if verb not in (*VERBS, "submit"):
        print(f"error: '{verb}' is not a command; use one of {', '.join(VERBS)}.", file=sys.stderr)
        return 2
    try:
        from train_anywhere.files import HAS_PROJECT, ROOT

        if not HAS_PROJECT and verb in OF_PROJECTS:
            raise ConfigError(
                "no project here: no folder above this one has configs/train.yaml; change to the project's folder, or set TRAIN_ROOT to it."
            )
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code

    # `-m` puts the current folder there; the project's modules are found from any folder below
    sys.path[0] = str(ROOT)
    if verb in JOBS:
        name, module, words = "train_anywhere", "jobs", sys.argv[1:]
    else:
        name, module, words = f"train_anywhere {verb}", MODULES.get(verb, verb), sys.argv[2:]
    sys.argv = [name, *words]
    return int(importlib.import_module(f"train_anywhere.commands.{module}").main(words))


if __name__ == "__main__":
    sys.exit(main())
