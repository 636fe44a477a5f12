"""One process of each node, before the ranks: `python -m train_anywhere.features.stage.each_node RUN`.

It opens the data set as a rank does, which copies it.

With Slurm the batch script starts it, so that no rank waits in a collective operation while another node still copies. Where
nothing starts it, the first rank of a node copies, and the others wait for it.
"""

import sys

from train_anywhere.config.load import load
from train_anywhere.data.open_data import open_splits
from train_anywhere.errors import ProjectError
from train_anywhere.features import Features
from train_anywhere.runs.folder import open_run
from train_anywhere.runs.reopen.frozen import read_frozen


def main(arguments: list[str]) -> int:
    """Returns 0, or 1 for a data set that can't be opened: the ranks will say so too."""
    [folder] = arguments
    try:
        config = load(read_frozen(open_run(folder)))
        open_splits(
            config.data,
            config.framework,
            config.seed,
            Features.of(config).staging,
            batch_size=config.data.batch_size,
        )
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
