"""Copy the data set to this node's own disk, by opening it as a rank does.

python -m train_anywhere.training.stage_data RUN

With Slurm the batch script runs this once on each node, so that no rank waits in a collective operation while another node still
copies. Elsewhere the first rank of a node copies, and the others wait for it.
"""

import sys

from train_anywhere.data.open_data import open_splits
from train_anywhere.errors import ProjectError
from train_anywhere.features import Features
from train_anywhere.runs.folder import open_run
from train_anywhere.runs.reopen.frozen import load_frozen


def main(arguments: list[str]) -> int:
    """Open the data set of a run. Return 1 if it can't be opened, which ranks report, else 0."""
    [folder] = arguments
    try:
        config = load_frozen(open_run(folder))
        open_splits(
            config.data,
            config.framework,
            config.seed,
            Features.of(config).stager,
            batch_size=config.data.batch_size,
        )
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
