"""Train with torch's DistributedDataParallel if `--ddp` is given, else in one process.

python src/run.py cluster=sockeye trainer.nodes=2 launch=torchrun -- examples/programs/main.py --ddp
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--ddp", action="store_true")
parser.add_argument("--epochs", type=int, default=2)


def main() -> None:
    """Fit a line, and print whether all ranks end with the same weights."""
    options = parser.parse_args()
    rank, size = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) if options.ddp else (0, 1)
    gpus = torch.cuda.device_count()
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % gpus) if gpus else torch.device("cpu")
    )
    if gpus:
        torch.cuda.set_device(device)
    if options.ddp:
        dist.init_process_group(
            "nccl" if gpus else "gloo"
        )  # reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    data = TensorDataset(x, 2 * x)
    sampler = DistributedSampler(data, size, rank)
    torch.manual_seed(rank)  # DDP makes the weights equal
    model: torch.nn.Module = torch.nn.Linear(1, 1).to(device)
    model = DistributedDataParallel(model) if options.ddp else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device)).backward()
            optimizer.step()
    weight = next(model.parameters()).detach().flatten()
    all_weights = [torch.zeros_like(weight) for _ in range(size)]
    if options.ddp:
        dist.all_gather(all_weights, weight)
        dist.destroy_process_group()
    else:
        all_weights = [weight]
    spread = torch.cat(all_weights)
    print(f"rank {rank} of {size}: spread of the weights {spread.max() - spread.min():g}", flush=True)


if __name__ == "__main__":
    main()
    gc.collect()  # else a thread of Gloo may abort the end of Python: github.com/pytorch/pytorch/issues/190489
