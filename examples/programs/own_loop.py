"""A training loop of its own, as nanoGPT has it: one process or DDP, checkpoints in `--out_dir`, `--init_from=resume`.

python src/run.py trainer.devices=2 trainer.accelerator=cpu program.resume_args=--init_from=resume \
    -- examples/programs/own_loop.py '--out_dir=$TRAIN_PERSISTENT_CHECKPOINTS'
"""

import argparse
import gc
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from train_anywhere.program import log

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir", type=Path, required=True)
parser.add_argument("--init_from", choices=["scratch", "resume"], default="scratch")
parser.add_argument("--max_iters", type=int, default=40)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")


def main() -> None:
    """Fit a line, with a checkpoint every 5 steps."""
    options = parser.parse_args()
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    gpus, local = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local % gpus) if gpus else torch.device("cpu")
    if several:
        dist.init_process_group("nccl" if gpus else "gloo")
    rank = dist.get_rank() if several else 0
    torch.manual_seed(1)
    network = torch.nn.Linear(1, 1).to(device)
    model = DistributedDataParallel(network) if several else network
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    step, file = 0, options.out_dir / "ckpt.pt"
    if options.init_from == "resume":
        saved = torch.load(file, map_location=device)
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    print(f"rank {rank} starts at step {step}", flush=True)
    while step < options.max_iters:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.rand(16, 1, generator=generator).to(device)
        loss = torch.nn.functional.mse_loss(model(x), 2 * x + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(options.pause)
        log(step, loss=loss)
        if step % 5 == 0 and rank == 0:
            torch.save(
                {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                f"{file}.new",
            )
            os.replace(f"{file}.new", file)
    print(f"rank {rank}: weight {network.weight.item():.6f} after {step} steps", flush=True)
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # else a thread of Gloo may abort the end of Python: github.com/pytorch/pytorch/issues/190489
