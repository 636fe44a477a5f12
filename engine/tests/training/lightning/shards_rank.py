# ruff: noqa: E402
"""Write one sharded checkpoint as a rank and print its number of sockets.

shards_rank.py FOLDER RANK RANKS
"""

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).resolve().parents[4]), str(Path(__file__).resolve().parents[4] / "engine")]

import torch
from torch import distributed

from train_anywhere.training.lightning.checkpoint.shards import Shards

torch.set_num_threads(1)


def sockets() -> int:
    """Return the number of open sockets of this process."""
    return sum(path.is_socket() for path in Path("/proc/self/fd").iterdir())


folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
before = sockets()
shards = Shards(folder / "checkpoints")
shards.write({"state_dict": {f"of {rank}": torch.full((3,), float(rank))}, "optimizer_states": [{}]})
error = shards.wait()
print(error or sockets() - before)
distributed.barrier()
