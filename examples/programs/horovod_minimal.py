"""The smallest program with Horovod: who is there, and one step that averages over all ranks.

python src/run.py cluster=technion trainer.nodes=2 -- examples/programs/horovod_minimal.py
"""

import horovod.torch as hvd
import torch

hvd.init()
gpus = torch.cuda.device_count()
device = torch.device("cuda", hvd.local_rank() % gpus) if gpus else torch.device("cpu")
print(
    f"size {hvd.size()}, local size {hvd.local_size()}, rank {hvd.rank()}, local rank {hvd.local_rank()}",
    flush=True,
)
average = hvd.allreduce(torch.tensor([float(hvd.rank())], device=device), name="ranks")
print(f"average of the ranks: {average.item():g}", flush=True)
