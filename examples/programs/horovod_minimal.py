"""The smallest program with Horovod: who is there, and one step that averages over all ranks.

python src/run.py cluster=technion trainer.nodes=2 -- examples/programs/horovod_minimal.py
"""

import horovod.torch as hvd
import torch

hvd.init()
print(
    f"size {hvd.size()}, local size {hvd.local_size()}, rank {hvd.rank()}, local rank {hvd.local_rank()}",
    flush=True,
)
average = hvd.allreduce(torch.tensor([float(hvd.rank())]), name="ranks")
print(f"average of the ranks: {average.item():g}", flush=True)
