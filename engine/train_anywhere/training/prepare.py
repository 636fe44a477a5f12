"""Open data and build models without training: on the login node, so that libraries download their files, and once on each node.

python -m train_anywhere.training.prepare RUN

With Slurm the batch script runs this once on each node to copy the data set to the node's own disk, so that no rank waits in a
collective operation while another node still copies. Elsewhere the first rank of a node copies, and the others wait for it.
"""

import sys

from train_anywhere.config.checks.targets import task_has_network
from train_anywhere.config.instantiate import instantiate
from train_anywhere.config.schema import Config
from train_anywhere.data.open_data import open_splits
from train_anywhere.errors import ProjectError
from train_anywhere.features import Features
from train_anywhere.launch.rank import import_framework_module
from train_anywhere.runs.folder import open_run
from train_anywhere.runs.reopen.frozen import load_frozen
from train_anywhere.training.plan import build_network


def build(config: Config) -> int:
    """Build data, task and network as a rank does, and return the exit code 0."""
    import_framework_module(config.framework, "run")
    whole = task_has_network(config.task, config.framework)
    task = instantiate(config.task, "task", config.framework) if whole else None
    splits = open_splits(config.data, config.framework, config.seed, batch_size=config.data.batch_size)
    for part in (splits.train, task):
        if prepare := getattr(part, "prepare_data", None):
            prepare()
    if not whole:
        build_network(config, splits.facts)
    elif configure := getattr(task, "configure_model", None):
        configure()
    return 0


def main(arguments: list[str]) -> int:
    """Open the data set of a run. Return 1 if it can't be opened, which ranks report, else 0."""
    [folder] = arguments
    try:
        config = load_frozen(open_run(folder))
        data, stager = config.data, Features.of(config).stager
        open_splits(data, config.framework, config.seed, stager, batch_size=data.batch_size)
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
